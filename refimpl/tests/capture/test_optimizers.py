"""Steps of torch's optimizers are captured: parameters and state are eager's after each of several steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_map_only

from refimpl._torch import group_tensors, value_for_optimizer
from refimpl.capture.entry_points.torch_patcher import TorchPatcher
from refimpl.tests.capture.capturing import Recorder, captured_with, each_of, same

Tensor = torch.Tensor
Log = Iterator[Any]
Captures = Callable[[Callable[..., Any]], Callable[..., Any]]
SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@pytest.fixture(autouse=True, scope="module")
def what_capture_leaves_out() -> None:
    TorchPatcher.patch()


def two_parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5])), torch.nn.Parameter(torch.tensor([[0.25], [3.0]]))]


def give_gradients(parameters: list[torch.nn.Parameter], step: int) -> None:
    """Other gradients at each step, as backward would write them."""
    for parameter in parameters:
        parameter.grad = (parameter.detach() * (step - 1.5)).cos()


def facts(parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> list[Any]:
    """What a step may change: the parameters, and all state in its order, with the classes of its dicts."""
    state: Any = optimizer.state
    assert [*map(id, state)] == [id(parameter) for parameter in parameters if parameter in state]
    classes = [type(state), *map(type, state.values())]
    kept = tree_map_only(Tensor, lambda found: found.detach().clone(), optimizer.state_dict())
    return [[parameter.detach().clone() for parameter in parameters], kept, classes]


def assert_close(seen: Any, wanted: Any) -> None:
    """Equal but for roundings. Eager computes what depends on the number of steps with floats of Python."""
    __tracebackhide__ = True
    (left, left_tree), (right, right_tree) = (tree_flatten(each) for each in (seen, wanted))
    assert str(left_tree) == str(right_tree)
    for one, other in zip(left, right, strict=True):
        if isinstance(other, Tensor):
            assert one.requires_grad == other.requires_grad
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        else:
            assert type(one) is type(other)
            assert one == pytest.approx(other) if type(other) is float else one == other


OPTIMIZERS = [
    # class, options, graphs: one for a step that makes state and one for those after it
    (SGD, {}, 1),
    (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, 2),
    (SGD, {"momentum": 0.9, "foreach": True, "maximize": True}, 2),
    (SGD, {"lr": torch.tensor(0.1), "dampening": 0.5, "momentum": 0.9}, 2),
    (Adam, {}, 2),
    (Adam, {"foreach": True, "amsgrad": True}, 2),
    (Adam, {"lr": torch.tensor(0.1)}, 2),
    (Adam, {"fused": True}, 1),  # the update breaks the graph
    (AdamW, {"foreach": True, "maximize": True}, 2),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}, 2),
    (torch.optim.Adagrad, {"lr_decay": 0.1}, 1),
    (torch.optim.Adadelta, {"foreach": True}, 2),
    (torch.optim.Rprop, {}, 2),
    (torch.optim.NAdam, {}, 2),
    (torch.optim.RAdam, {"betas": (0.9, 0.6)}, 3),  # a branch on the number of steps breaks the graph
    (torch.optim.Adamax, {"foreach": True}, 2),
    (torch.optim.ASGD, {"t0": 2}, 2),
]


@pytest.mark.parametrize(
    ("class_", "given", "graphs"),
    OPTIMIZERS,
    ids=[f"{class_.__name__}-{'-'.join(given)}" for class_, given, _ in OPTIMIZERS],
)
def test_each_optimizer_steps_as_in_eager(class_: Any, given: dict[str, Any], graphs: int) -> None:
    seen, recorder = [], Recorder()
    for is_captured in (False, True):
        parameters = two_parameters()[:1]
        optimizer: Any = class_(parameters, **{"lr": 0.1, **given})
        step = optimizer.step
        if is_captured:
            step, recorder, _ = captured_with(optimizer.step)
        seen.append([])
        for number in range(3):
            give_gradients(parameters, number)
            step()
            seen[-1].append(facts(parameters, optimizer))
    assert_close(seen[1], seen[0])
    assert len(recorder.graphs) == graphs


def several_groups(captured: Captures) -> Log:
    parameters = two_parameters()
    optimizer = AdamW([{"params": parameters[:1], "lr": 0.01}, {"params": parameters[1:], "betas": (0.8, 0.9)}], lr=0.1)
    step = captured(lambda: optimizer.step())
    for number in range(4):
        give_gradients(parameters, number)
        step()
        yield facts(parameters, optimizer)


def a_group_added_later(captured: Captures) -> Log:
    parameters = two_parameters()
    optimizer = SGD(parameters[:1], lr=0.1, momentum=0.9)
    step = captured(optimizer.step)
    for number in range(4):
        if number == 2:
            optimizer.add_param_group({"params": parameters[1:], "lr": 0.3})
        give_gradients(parameters, number)
        step()
        yield facts(parameters, optimizer)


def gradients_that_are_missing(captured: Captures) -> Log:
    parameters = two_parameters()
    optimizer = SGD(parameters, lr=0.1, momentum=0.9)
    step = captured(optimizer.step)
    for number in range(5):
        give_gradients(parameters, number)
        parameters[number % 2].grad = None
        step()
        yield [parameter.detach().clone() for parameter in parameters], [*optimizer.state.values()]


def the_gradients_set_to_zero(captured: Captures) -> Log:
    parameters = two_parameters()
    optimizer = SGD(parameters, lr=0.1)

    def step(is_removed: bool) -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=is_removed)

    compiled = captured(step)
    for number in range(4):
        give_gradients(parameters, number)
        compiled(number % 2 == 0)
        yield facts(parameters, optimizer), [parameter.grad for parameter in parameters]


def the_whole_training_step(captured: Captures) -> Log:
    parameters = two_parameters()
    optimizer = Adam(parameters, lr=0.1)

    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (parameters[0] * x).square().sum() + parameters[1].sin().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        return loss.detach()

    compiled = captured(train)
    for number in range(4):
        yield compiled(torch.full((3,), float(number))), facts(parameters, optimizer)


def step_with_a_closure(optimizer: Any, parameter: Tensor) -> Callable[[Tensor], Any]:
    def train(x: Tensor) -> Any:
        def loss_of() -> Tensor:
            optimizer.zero_grad()
            loss = (parameter * x).square().sum()
            loss.backward()
            return loss

        return optimizer.step(loss_of)

    return train


def a_closure(captured: Captures) -> Log:
    parameters = two_parameters()[:1]
    optimizer = Adam(parameters, lr=0.1)

    compiled = captured(step_with_a_closure(optimizer, parameters[0]))
    for number in range(4):
        yield compiled(torch.full((3,), float(number))).detach(), facts(parameters, optimizer)


def a_search_with_a_closure(captured: Captures) -> Log:
    parameters = two_parameters()[:1]
    optimizer = torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)

    compiled = captured(step_with_a_closure(optimizer, parameters[0]))
    for number in range(3):
        yield compiled(torch.full((3,), float(number))).detach(), parameters[0].detach().clone()


def a_schedule_of_a_tensor(captured: Captures) -> Log:
    parameters = two_parameters()[:1]
    optimizer = Adam(parameters, lr=torch.tensor(0.1))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    step = captured(lambda: optimizer.step())
    for number in range(4):
        give_gradients(parameters, number)
        step()
        schedule.step()
        yield facts(parameters, optimizer)


def a_schedule_of_numbers(captured: Captures) -> Log:
    parameters = two_parameters()[:1]
    optimizer = SGD(parameters, lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step() -> None:
        optimizer.step()
        schedule.step()

    compiled = captured(step)
    for number in range(3):
        give_gradients(parameters, number)
        compiled()
        yield facts(parameters, optimizer)


def hooks_of_the_optimizer(captured: Captures) -> Log:
    parameters, seen = two_parameters()[:1], []
    optimizer = SGD(parameters, lr=0.1)

    def before(of: Any, args: Any, kwargs: Any) -> None:
        seen.append(("before", of is optimizer, len(args), dict(kwargs)))
        parameters[0].grad = parameters[0].grad * 2 if parameters[0].grad is not None else None

    optimizer.register_step_pre_hook(before)
    after = optimizer.register_step_post_hook(lambda of, args, kwargs: seen.append("after"))
    step = captured(lambda: optimizer.step())
    for number in range(4):
        if number == 2:
            after.remove()
        give_gradients(parameters, number)
        step()
        yield facts(parameters, optimizer), [*map(str, seen)]


def hooks_that_pass_other_arguments(captured: Captures) -> Log:
    parameters = two_parameters()[:1]
    optimizer = SGD(parameters, lr=0.1)
    optimizer.register_step_pre_hook(lambda of, args, kwargs: (args, {"closure": lambda: torch.tensor(3.0)}))
    step = captured(lambda: optimizer.step())
    for number in range(3):
        give_gradients(parameters, number)
        yield step(), facts(parameters, optimizer)


def hooks_of_all_optimizers(captured: Captures) -> Log:
    parameters, seen = two_parameters()[:1], []
    optimizer = SGD(parameters, lr=0.1)
    registered = [
        register_optimizer_step_pre_hook(lambda of, args, kwargs: seen.append("before")),
        register_optimizer_step_post_hook(lambda of, args, kwargs: seen.append("after")),
    ]
    step = captured(lambda: optimizer.step())
    try:
        for number in range(4):
            if number == 2:
                registered[0].remove()
            give_gradients(parameters, number)
            step()
            yield facts(parameters, optimizer), [*seen]
    finally:
        for each in registered:
            each.remove()


def state_that_is_loaded(captured: Captures) -> Log:
    parameters = two_parameters()[:1]
    optimizer, other = Adam(parameters, lr=0.1), Adam(two_parameters()[:1], lr=0.1)
    step = captured(lambda: optimizer.step())
    for number in range(4):
        give_gradients(parameters, number)
        if number == 2:
            give_gradients(other.param_groups[0]["params"], 1)
            other.step()
            optimizer.load_state_dict(other.state_dict())
        step()
        yield facts(parameters, optimizer)


def two_optimizers(captured: Captures) -> Log:
    parameters = two_parameters()
    first, second = SGD(parameters[:1], lr=0.1, momentum=0.9), torch.optim.Adagrad(parameters[1:], lr=0.01)

    def step() -> None:
        first.step()
        second.step()

    compiled = captured(step)
    for number in range(4):
        give_gradients(parameters, number)
        compiled()
        yield facts(parameters[:1], first), facts(parameters[1:], second)


def an_optimizer_made_in_the_step(captured: Captures) -> Log:
    parameters = two_parameters()[:1]

    def train(x: Tensor) -> Tensor:
        SGD(parameters, lr=0.1).step()
        return x + 1

    compiled = captured(train)
    for number in range(3):
        give_gradients(parameters, number)
        yield compiled(torch.ones(2)), [parameter.detach().clone() for parameter in parameters]


def an_update_with_gradients(captured: Captures) -> Log:
    def update(x: Tensor, gradient: Tensor) -> Tensor:
        parameter = x.add(1)
        parameter.grad = gradient
        SGD([parameter], lr=0.1, differentiable=True).step()
        return parameter.sum()

    compiled = captured(update)
    for number in range(3):
        x, gradient = (torch.full((2,), number + 1.0, requires_grad=True) for _ in range(2))
        compiled(x, gradient).backward()
        yield x.grad, gradient.grad


def a_branch_that_depends_on_roundings(captured: Captures) -> Log:
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    parameter.grad = torch.tensor([1.0, -2.0], dtype=torch.float64)
    optimizer = torch.optim.RAdam([parameter], lr=1.0, betas=(0.9, 0.9999))
    step = captured(lambda: optimizer.step())
    for _ in range(6):  # in float32 the fifth step takes the other branch
        step()
        yield facts([parameter], optimizer)


class Averaging(torch.optim.Optimizer):
    """An optimizer of the program, whose state has a number among the tensors."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                own = self.state[parameter]
                if not own:
                    own["count"], own["mean"] = 0, torch.zeros_like(parameter)
                own["count"] += 1
                own["mean"].lerp_(parameter.grad, 0.1)
                parameter.sub_(own["mean"], alpha=group["lr"])


def an_optimizer_of_the_program(captured: Captures) -> Log:
    parameters = two_parameters()[:1]
    optimizer = Averaging(parameters, 0.1)
    step = captured(lambda: optimizer.step())
    for number in range(4):
        give_gradients(parameters, number)
        step()
        yield facts(parameters, optimizer)


@each_of(
    several_groups, a_group_added_later, gradients_that_are_missing, the_gradients_set_to_zero, the_whole_training_step,
    a_closure, a_search_with_a_closure, a_schedule_of_a_tensor, a_schedule_of_numbers, hooks_of_the_optimizer,
    hooks_that_pass_other_arguments, hooks_of_all_optimizers, state_that_is_loaded, two_optimizers,
    an_optimizer_made_in_the_step, an_update_with_gradients, an_optimizer_of_the_program, a_branch_that_depends_on_roundings,
)  # fmt: skip
def test_programs_that_step_do_what_eager_does(program: Callable[[Captures], Log]) -> None:
    recorders: list[Recorder] = []

    def captured(function: Callable[..., Any]) -> Callable[..., Any]:
        made, recorder, _ = captured_with(function)
        recorders.append(recorder)
        return made

    assert_close([*program(captured)], [*program(lambda function: function)])
    targets = {target for recorder in recorders for target in recorder.targets}
    is_left_out = program is a_search_with_a_closure  # LBFGS runs backward in its step, and no graph is made of it
    assert is_left_out or targets & {"add_", "addcmul_", "sub_", "add"}


def test_the_setup_is_captured_where_another_capture_has_replaced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    setup: Any = vars(Adam._init_group).get("_torchdynamo_orig_callable", Adam._init_group)  # torch's own may be loaded

    def left_out(*args: Any, **kwargs: Any) -> Any:
        return setup(*args, **kwargs)

    left_out.__name__ = "_init_group"
    left_out.__dict__.update(_torchdynamo_disable=True, _torchdynamo_orig_callable=setup)
    monkeypatch.setattr(Adam, "_init_group", left_out)
    parameters = two_parameters()[:1]
    optimizer = Adam(parameters)
    step, recorder, _ = captured_with(optimizer.step)
    give_gradients(parameters, 0)
    step()
    assert len(recorder.graphs) == 1
    assert "zeros_like" in recorder.targets
    assert optimizer.state[parameters[0]]["step"].item() == 1


def test_another_order_of_the_state_is_another_capture() -> None:
    parameters = two_parameters()
    optimizer = SGD(parameters, lr=0.1, momentum=0.9)
    step, recorder, _ = captured_with(optimizer.step)
    for number in range(4):
        if number == 3:
            moved = [*optimizer.state.items()][::-1]
            optimizer.state.clear()
            optimizer.state.update(moved)
        give_gradients(parameters, 1)
        before = [own["momentum_buffer"].clone() for own in optimizer.state.values()]
        step()
        for (parameter, own), buffer in zip(optimizer.state.items(), before, strict=False):
            torch.testing.assert_close(own["momentum_buffer"], buffer * 0.9 + parameter.grad)
    assert len(recorder.graphs) == 3


def scaled_by_tensors(x: Tensor, factor: Any) -> Any:
    return (
        torch.add(x, x + 1, alpha=factor), x.sub(x + 2, alpha=factor), torch.addcmul(x, x + 1, x, value=factor),
        x.clone().addcdiv_(x, x + 1, value=factor),
    )  # fmt: skip


def test_an_operator_multiplies_by_a_tensor_that_eager_reads() -> None:
    captured, recorder, made = captured_with(scaled_by_tensors)
    for number in (0.5, 2.0):
        given = torch.arange(3.0), torch.tensor(number)
        assert_close(captured(*given), scaled_by_tensors(*given))
    assert len(recorder.graphs) == 1
    assert not made.breaks


@pytest.mark.parametrize(
    ("x", "factor"),
    [
        (torch.arange(3), torch.tensor(1.5)),
        (torch.arange(3.0), torch.tensor([1.5, 1.5])),
        (torch.arange(3.0), torch.tensor(1.5, requires_grad=True)),
    ],
)
def test_a_number_that_eager_refuses_is_refused(x: Tensor, factor: Tensor) -> None:
    for program in (scaled_by_tensors, captured_with(scaled_by_tensors)[0]):
        with pytest.raises((RuntimeError, TypeError)):
            program(x, factor)


def gives(program: Callable[..., Any], *given: Tensor) -> tuple[Any, Any]:
    """What the program returns, or the class of its error, and what it has made of its arguments."""
    own = [tensor.clone() for tensor in given]
    try:
        return program(*own), own
    except (RuntimeError, TypeError) as error:
        return type(error), own


def assert_gives_the_same(program: Callable[..., Any], *given: Tensor, graphs: int = 1) -> None:
    __tracebackhide__ = True
    captured, recorder, made = captured_with(program)
    torch.testing.assert_close(gives(captured, *given), gives(program, *given), rtol=1e-6, atol=0)
    assert len(recorder.graphs) == graphs
    assert not made.breaks


double = torch.tensor(0.1, dtype=torch.float64)
one, two, three = (torch.tensor(number) for number in (1.0, 2.0, 3.0))
brief = torch.linspace(1, 9, 16, dtype=torch.bfloat16)
half = torch.full((3,), 300.0, dtype=torch.float16)


@pytest.mark.parametrize(
    ("program", "given"),
    [
        (lambda x, y, a: (torch.add(x, y, alpha=a), x.sub(y, alpha=a)), (one, two, double)),
        (lambda x, y, a: (torch.addcmul(x, y, x, value=a), x.addcdiv(y, x, value=a)), (three, two, double)),
        (lambda x, y, a: (torch.addcmul(x, y, y, value=a), x.addcdiv_(y, x, value=a)), (three, two.double(), double)),
        (lambda x, y, a: x.addcmul_(y, y, value=a), (half * 0, half, torch.tensor(1e-3))),
        (lambda x, y, a: x.addcdiv(y, y * 1e-6, value=a), (half, half, torch.tensor(1e-3))),
        (lambda x, y, a: x.addcmul(y, y, value=a), (brief, brief, torch.tensor(0.123))),
        (lambda x, y, a: x.add_(y, alpha=a), (half.repeat(32), -half.repeat(32), torch.tensor(1.1234))),
        (lambda x, y, a: x.addcmul(y, y, value=a), (one, torch.tensor(1e30), torch.tensor(1e-30))),
    ],
    ids=["sum", "products", "two dtypes", "half product", "half quotient", "bfloat16", "rounded alpha", "large"],
)
def test_a_product_with_a_tensor_has_the_dtype_in_which_eager_computes(program: Any, given: Any) -> None:
    assert_gives_the_same(program, *given)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y, a: torch._foreach_addcmul_([x, y], [y, x], [x, x], a),
        lambda x, y, a: torch._foreach_addcdiv_([x, x], [y, x], [x, y], a),
        lambda x, y, a: torch._foreach_addcmul_([a[1:], a[:1]], [y, x], [x, x], a),
    ],
    ids=["each other", "the same twice", "the numbers"],
)
def test_a_list_of_products_is_added_in_order(program: Any) -> None:
    assert_gives_the_same(program, torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([2.0, 3.0]))


def test_a_list_of_products_with_a_tensor_has_no_derivative() -> None:
    def program(x: Tensor, a: Tensor) -> Tensor:
        y = x * 1
        torch._foreach_addcmul_([y], [x], [x], a)
        return y.sum()

    for function in (program, captured_with(program)[0]):
        with pytest.raises(RuntimeError, match="not implemented"):
            function(torch.tensor([2.0], requires_grad=True), torch.tensor([3.0])).backward()


def test_a_list_of_half_products_is_computed_in_float32() -> None:
    numbers = torch.tensor([1e-3, 2e-3])
    assert_gives_the_same(
        lambda x, y, a: torch._foreach_addcmul_([x, y], [y, x], [y, y], a), half * 0, half.clone(), numbers
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda x, a: torch._foreach_addcmul_([x], [x], [x], [a]),
        lambda x, a: torch._foreach_addcmul_([x], [x], [x], [a.double() * 2]),
        lambda x, a: torch._foreach_addcmul_([x, x + 1], [x, x.expand(5, 7)], [x, x], torch.stack([a, a])),
    ],
    ids=["tensor", "computed tensor", "another shape, after a write"],
)
def test_lists_that_eager_refuses_are_refused(program: Any) -> None:
    given = torch.tensor([3.0]), two
    wanted = gives(program, *given)
    assert isinstance(wanted[0], type)
    assert gives(captured_with(program)[0], *given) == wanted


def test_a_list_of_numbers_that_an_optimizer_reads_is_in_the_graph() -> None:
    assert_gives_the_same(
        lambda x, a: torch._foreach_addcmul_(
            [x, x], [x, x], [x, x], [value_for_optimizer(a) * 0.1, 1 / value_for_optimizer(a)]
        ),
        torch.tensor([3.0]),
        two,
    )


def test_an_average_of_a_model_is_grouped_in_the_graph() -> None:
    def average() -> tuple[torch.nn.Module, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )

    (model, averaged), (other, expected) = average(), average()
    captured, _, options = captured_with(averaged.update_parameters)
    for step in range(3):
        for each in (model, other):
            torch.nn.init.constant_(each.get_parameter("weight"), float(step))
        captured(model)
        expected.update_parameters(other)
    assert all(map(torch.equal, averaged.state_dict().values(), expected.state_dict().values()))
    assert not [reason for reason in options.breaks if "_group_tensors" in str(reason)]


def test_tensors_of_several_kinds_are_grouped_as_in_eager() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        grouped = group_tensors([[x, y], [y, None]], True)
        return [
            (key == (x.device, x.dtype), lists[0][0] + 1, len(lists[1]), indices)
            for key, (lists, indices) in grouped.items()
        ]

    x, wide = torch.ones(2), torch.ones(2, dtype=torch.float64)
    assert_gives_the_same(program, x, x + 1)
    assert same(captured_with(program)[0](x, wide), program(x, wide))
