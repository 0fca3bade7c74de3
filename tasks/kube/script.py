"""The agent container's first process: a few lines of POSIX sh that start the command and say how it ended.

Written per pod and delivered with its files, so that neither the command nor its environment, which holds the
rollout's key, stands in the Job. Called as `sh run CONTROL WORKSPACE HOME`.
"""

import shlex

from tasks.sandboxes import Spec

_START = """\
exec 9>"$1/code" 8>"$1/stdout" 7>"$1/stderr"
export HOME="$3" USER=agent LANG=C.UTF-8 TERM=dumb
"""
# The shell is pid 1: when it ends, the kernel ends everything else in the container. It waits on a pipe and not for its
# child, so that the sidecar can end it too.
_RUN = """\
cd "$2" || exit 127
control=$1
if ! command -v {program} >/dev/null 2>&1; then
    echo "start_failed {program}: not found" >&9
    exit 127
fi
(
    exec </dev/null >&8 2>&7 7>&- 8>&- 9>&-
    {command}
    echo "$?" >"$control/ended"
) &
read -r code <"$control/ended"
[ "$code" = stop ] && exit 124
echo "$code" >&9
exit "$code"
"""


def run_script(spec: Spec) -> str:
    """The script that runs `spec`'s command."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in spec.env.items())
    # A value may hold braces, so only the template is formatted.
    body = _RUN.replace("{program}", shlex.quote(spec.argv[0])).replace("{command}", shlex.join(spec.argv))
    return _START + exports + body
