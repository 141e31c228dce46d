"""The words of the report: status words and kinds of change in plain English, and what the judge's witnesses are."""

from __future__ import annotations

from typing import Final

from oracle.verdict import Status
from results.changes import ChangeKind

NOT_PLANNED: Final = "not_planned"  # the status of a case that base has and head does not

STATUS_SENTENCES: Final[dict[str, str]] = {
    Status.PASS.value: "The subject agrees with eager.",
    Status.PASS_DUE_TO_SKIP.value: "Nothing was compared, so this is no agreement.",
    Status.FAIL_ACCURACY.value: "The compiled program returns wrong values and raises no error.",
    Status.FAIL_GRAD.value: "The results are right, their gradients are wrong, and no error is raised.",
    Status.FAIL_MUTATION.value: "The compiled program does not change its arguments as eager changes them.",
    Status.FAIL_ALIAS.value: "Results share memory where eager's do not, or the reverse.",
    Status.FAIL_STRIDE.value: "The values are right, the strides are not eager's.",
    Status.FAIL_METADATA.value: "A dtype, a shape, requires_grad or another property is not eager's.",
    Status.FAIL_STATE.value: "The state of a module or of the process is not eager's, or memory of every call is kept.",
    Status.FAIL_RNG.value: "The random generator is not as eager leaves it.",
    Status.FAIL_GUARD.value: "The first call is right, a later call is wrong: a guard is missing or too weak.",
    Status.FAIL_EXCEPTION.value: "Eager raises; the subject returns, or raises another error.",
    Status.FAIL_EXPORT.value: "The exported program does not do what eager does.",
    Status.FAIL_TO_RUN.value: "Eager returns, the subject raises an error.",
    Status.EAGER_FAIL_TO_RUN.value: "Eager itself raises, so there is nothing to compare with.",
    Status.EAGER_TWO_RUNS_DIFFER.value: "Eager differs from itself, so there is nothing to compare with.",
    Status.MODEL_FAIL_TO_LOAD.value: "The program could not be built.",
    Status.OOM.value: "The case used more memory than its limit.",
    Status.TIMEOUT.value: "The case took longer than its limit.",
    Status.CRASH.value: "The process died while it ran the case.",
    Status.MISSING.value: "The case was planned and has no record, although the run is complete.",
    Status.NOT_RUN.value: "The run was stopped before this case.",
    Status.KNOWN.value: "The subject differs from eager as a known issue says.",
    Status.XPASS.value: "The subject agrees with eager, although a known issue says that it differs.",
    NOT_PLANNED: "The earlier run has this case; this run did not plan it.",
}

CHANGE_SENTENCES: Final[dict[str, str]] = {
    ChangeKind.NEW_FAILURE.value: "it fails, and did not fail in the earlier run",
    ChangeKind.MISSING_ROW.value: "the earlier run has it, and this one has no record of it",
    ChangeKind.NO_LONGER_COMPARED.value: "it was judged in the earlier run, and could not be judged in this one",
    ChangeKind.CHANGED_SYMPTOM.value: "it fails in both runs, in different ways",
    ChangeKind.STILL_FAILING.value: "it fails in both runs in the same way",
    ChangeKind.FIXED.value: "it failed in the earlier run, and passes now",
    ChangeKind.NEW_ROW.value: "the earlier run has no result of it, and it does not fail",
    ChangeKind.UNCHANGED.value: "it ended the same way in both runs",
}

# Names of oracle.judge.witnesses; another name is shown without an explanation.
WITNESS_SENTENCES: Final[dict[str, str]] = {
    "bits": "equal to eager's, bit by bit",
    "close": "close to eager's",
    "fp64": "no further from eager in float64 than eager itself may be",
    "noise": "within what rounding noise does to eager",
    "loud noise": "within what larger rounding noise does to eager",
    "other kernels": "what another kernel of eager returns",
}
