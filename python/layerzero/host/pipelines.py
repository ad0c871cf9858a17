"""The policy's `pipelines` (LAYERZERO_PIPELINES), applied at import and after each change of the policy."""

import sys

from layerzero.errors import LayerZeroError
from layerzero.host.policy import in_worker, policy_in_force

_INTEGRATION = "layerzero.integrations.pipelines"


def apply() -> None:
    """Kernelizes pipelines from here on, or no more, as the process's policy says."""
    keys = policy_in_force()["keys"]
    wanted = bool(keys["pipelines"]["value"])
    if in_worker or not (wanted or _INTEGRATION in sys.modules):
        return
    from layerzero.integrations.pipelines import serve_pipelines

    serve_pipelines(wanted)


def apply_at_import() -> None:
    """Does apply(); a policy that is wrong says so at the first call."""
    try:
        apply()
    except LayerZeroError:
        return
