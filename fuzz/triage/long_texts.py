"""The fixed texts of the long script, which runs any program with any call plan and compares all that a caller can see."""

from __future__ import annotations

TEXT_INPUTS = """

def inputs_NUMBER():
    torch.manual_seed(SEED)
    make_inputs = NAMES["program"].get("inputs", lambda call: ([], {}))
    return as_a_caller(make_inputs(NUMBER), {}, {})
"""
AS_A_CALLER = """
NAMES = {}  # of the program that is being run


def as_a_caller(value, storages, tensors):
    '''The same values. Leaf tensors that share memory are made one by one on it, so that autograd knows of no base.'''
    if isinstance(value, dict):
        return {key: as_a_caller(item, storages, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(as_a_caller(item, storages, tensors) for item in value)
    if type(value) is not torch.Tensor or value.layout is not torch.strided or not value.is_leaf:
        return value
    if id(value) not in tensors:
        memory = value.detach().untyped_storage()
        memory = storages.setdefault(memory.data_ptr() or id(memory), memory)
        with torch.no_grad():
            own = torch.empty(0, dtype=value.dtype, device=value.device)
            own.set_(memory, value.storage_offset(), value.shape, value.stride())
        own = own.conj() if value.is_conj() else own
        own = torch._neg_view(own) if value.is_neg() else own
        tensors[id(value)] = (own.requires_grad_(value.requires_grad), value)
    return tensors[id(value)][0]
"""
EXPORTED = """
class Called(torch.nn.Module):
    '''A function as the module that export wants.'''

    def __init__(self, target):
        super().__init__()
        self.target = target

    def forward(self, *args, **kwargs):
        return self.target(*args, **kwargs)


def compiled(target):
    modules = []

    def call(*args, **kwargs):
        if not modules:  # exported by the first call's arguments
            module = target if isinstance(target, torch.nn.Module) else Called(target)
            modules.append(torch.export.export(module, tuple(args), kwargs, strict=STRICT).module())
        return modules[0](*args, **kwargs)

    return call
"""
RUN = '''
def make():
    """A fresh program: its names, and what is called."""
    names = globals()
    if "SOURCE" in names:
        module = type(sys)(f"program_under_test_{len(sys.modules)}")  # Dynamo imports a function's module by its name
        sys.modules[module.__name__] = module
        names = vars(module)
        names["DEVICE"] = "cpu"
        exec(SOURCE, names)
    torch.manual_seed(SEED)
    return names, names["program"]() if IS_MODULE else names["program"]


def flatten(value, path):
    if isinstance(value, (list, tuple)):
        return [leaf for i, item in enumerate(value) for leaf in flatten(item, f"{path}[{i}]")]
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in flatten(item, f"{path}[{key!r}]")]
    return [(path, value)]


def tangents(outputs, seed):
    """Each output that has a gradient, and quarters between -2 and 2 to begin with."""
    generator, pairs = torch.Generator().manual_seed(seed), {}
    for _, t in outputs:
        if isinstance(t, torch.Tensor) and t.requires_grad and id(t) not in pairs:
            shape = (*t.shape, 2) if t.is_complex() else tuple(t.shape)
            sizes = torch.randint(1, 9, shape, generator=generator)
            drawn = sizes * (torch.randint(0, 2, shape, generator=generator) * 2 - 1) / 4
            pairs[id(t)] = (t, (torch.view_as_complex(drawn) if t.is_complex() else drawn).to(t.dtype))
    return list(pairs.values())


def state_of(target, names):
    """What a call may leave behind: parameters, buffers and other tensors of the module, and those of the program's globals."""
    state = list(target.state_dict(keep_vars=True).items()) if IS_MODULE else []
    owners = [(name, vars(child)) for name, child in target.named_modules()] if IS_MODULE else []
    owners += [("globals", names)] if "SOURCE" in globals() else []
    for name, values in owners:
        kept = flatten({key: value for key, value in values.items() if key[0] != "_"}, name)
        state += [(path, value) for path, value in kept if isinstance(value, torch.Tensor)]
    return [(f"state {name}", value) for name, value in state]


def run(wrap):
    """What can be seen of every call: a dict of aspects."""
    names, target = make()
    f, seen = wrap(target), {}
    for number, (make_inputs, plan) in enumerate(CALLS):
        names["target"] = target
        exec(plan.get("before", ""), names)
        if plan.get("training") is not None:
            target.train(plan["training"])
        args, kwargs = make_inputs()
        leaves = flatten(args, "argument") + flatten(kwargs, "argument")
        if DERIVES:
            args, kwargs = names["derive"](*args, **kwargs)
            leaves += flatten(args, "derived argument")
        leaves += state_of(target, names)
        torch.manual_seed(SEED + number)
        random.seed(SEED + number)
        mode = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(plan.get("grad_mode"), torch.enable_grad)
        try:
            with mode():
                result = f(*args, **kwargs)
            outputs = flatten(result, "output")
            found = {**dict(outputs + leaves), **dict(state_of(target, names))}
            look(seen, f"call {number}: ", list(found.items()))
            seen[f"call {number}: generator"] = torch.get_rng_state()
            if plan.get("backward"):
                pairs = tangents(outputs, SEED + number)
                torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
                for path, leaf in leaves:
                    if isinstance(leaf, torch.Tensor) and leaf.is_leaf and leaf.requires_grad:
                        seen[f"call {number}: gradient of {path}"] = leaf.grad
                seen[f"call {number}: generator after the backward"] = torch.get_rng_state()
        except Exception as error:
            message = str(error).strip().splitlines()[:1]
            print(f"    raises {type(error).__name__}: {message}")
            seen[f"call {number}: exception"] = type(error).__name__
    return seen


def look(seen, call, leaves):
    storages = {}
    for path, leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            seen[f"{call}value of {path}"] = leaf
            continue
        seen[f"{call}value of {path}"] = leaf.detach().clone()
        seen[f"{call}kind of {path}"] = (tuple(leaf.shape), leaf.dtype)
        strides = [stride for stride, size in zip(leaf.stride(), leaf.shape) if size != 1]
        seen[f"{call}layout of {path}"] = strides if leaf.numel() else []
        seen[f"{call}flags of {path}"] = (
            leaf.requires_grad, leaf.is_leaf, leaf.is_conj(), leaf.is_neg(), leaf.is_inference(),
        )
        memory = leaf.untyped_storage()
        begins = leaf.storage_offset() if leaf.numel() else None
        storages.setdefault(memory.data_ptr() if memory.nbytes() else (id(leaf),), []).append((path, id(leaf), begins))
    groups = []
    for paths in storages.values():
        first = min((begins for _, _, begins in paths if begins is not None), default=0)
        same = [mine for _, mine, _ in paths]
        groups.append(
            [(path, same.index(mine), 0 if begins is None else begins - first) for path, mine, begins in paths]
        )
    seen[f"{call}aliases"] = sorted(paths for paths in groups if len(paths) > 1)
'''
COMPARE = """
ASKED = ASPECTS  # what the report is about; other differences are printed and not counted
LIMITS = TOLERANCES  # of torch.testing.assert_close


def differ(one, other):
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return True
        if SIGNS and bool((one.signbit() != other.signbit()).any()):
            return True
        try:
            limits = LIMITS if one.is_floating_point() or one.is_complex() else {}
            torch.testing.assert_close(other, one, equal_nan=True, **limits)
        except AssertionError:
            return True
        return False
    if isinstance(one, float) and isinstance(other, float):
        return not (one == other or one != one and other != other or abs(one - other) <= 1e-6 * abs(one))
    return type(one) is not type(other) or (not isinstance(one, torch.Tensor) and repr(one) != repr(other))


def differences(eager, seen):
    return [key for key in {**eager, **seen} if key not in eager or key not in seen or differ(eager[key], seen[key])]
"""
MAIN = """
if __name__ == "__main__":
    print("torch", torch.__version__, "Python", sys.version.split()[0], sys.platform)
    print("eager:")
    eager = run(lambda target: target)
    print("compiled:")
    seen = run(compiled)
    found = differences(eager, seen)
    for key in found:
        print(f"{key}\\n    eager:    {eager.get(key, 'nothing')}\\n    compiled: {seen.get(key, 'nothing')}")
    is_live = any(key.partition(": ")[2].startswith(ASKED) for key in found)
    print("DIFFERENT" if is_live else "the same")
    sys.exit(1 if is_live else 0)
"""
MAIN_DEADLY = """
if __name__ == "__main__":
    if sys.argv[1:] == ["compiled"]:
        run(compiled)
        sys.exit(0)
    print("torch", torch.__version__, "Python", sys.version.split()[0], sys.platform)
    print("eager:", differences({}, run(lambda target: target)) and "runs")
    try:
        code = subprocess.run([sys.executable, __file__, "compiled"], timeout=120).returncode
    except subprocess.TimeoutExpired:
        code = "no end within 120 s"
    print("compiled:", "runs" if code == 0 else f"dies: {code}")
    sys.exit(1 if code else 0)
"""
