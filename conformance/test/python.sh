#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python client: its unit tests; the PyTorch backend conforms in binary32 and bf16, naive and grouped (all four with LONG=1,
# else two, one of them in one call a case); planted mistakes are named; the exact reference, called from Python, conforms through
# the protocol.
set -u
fail() { echo "python: $*"; [ -s "$out/stdout" ] && head -n 40 "$out/stdout"; exit 1; }
skip() { echo "python: skipped: $*"; }
client=$SOURCE/conformance/python
python=
for each in "${PYTHON:-python3}" /usr/bin/python3; do
    "$each" -c 'import numpy' 2>/dev/null && python=$each && break
done
[ -n "$python" ] || { skip "no python3 with numpy here"; exit 77; }
# A sanitized library cannot be loaded into a plain interpreter.
[ "${SANITIZED:-}" = ON ] && { skip "a sanitized build"; exit 77; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
export PYTHONPATH=$client PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export SLM_LIBRARY=${SLM_LIBRARY:-$(dirname "$SLMOE")/libslm.so}

judge() { # $1: expected exit code; $2: module:Class and options; rest: options of slmoe
    local want=$1 testee=$2 got
    shift 2
    "$SLMOE" run -b "cmd:$python -m slm.serve $testee" "$@" >"$out/stdout" 2>&1
    got=$?
    [ "$got" = "$want" ] || fail "$testee: slmoe exited $got, expected $want"
}
names() { grep -qE "$1" "$out/stdout" || fail "$2: the report lacks '$1'"; }

"$python" -m unittest discover -s "$client/tests" >"$out/stdout" 2>&1 || fail "unit tests"
tail -n 1 "$out/stdout" | sed 's/^/python: unit tests: /'

if [ -e "$SLM_LIBRARY" ]; then
    judge 0 "slm.library:Library name=ref" --tier smoke
    echo "python: ref through ctypes and the protocol: $(tail -n 1 "$out/stdout")"
    # Rows far apart, that is an arena of TiB: no fault where address space for it lacks.
    "$SLMOE" run -b "cmd:sh -c 'ulimit -v 16777216; exec $python -m slm.serve slm.library:Library name=ref'" --only 'rmsnorm/widths/*' \
        >"$out/stdout" 2>&1 || fail "16 GiB of address space do"
else
    skip "slm.library: no $SLM_LIBRARY"
fi

cd "$out" || exit 1
cp "$client/tests/broken.py" .
cat >wrong.py <<'END'
import numpy as np, slm
class Raises(slm.Backend):
    def rmsnorm(self, *, u, gamma=None):
        raise LookupError("no such row")
class Coarse(slm.Backend):
    def __init__(self, declared=""):
        self.arithmetic = slm.Arithmetic(store={"r": 2.0**-8} if declared else {})
    def rmsnorm(self, *, u, gamma=None):
        if not np.isfinite(u).all():
            raise slm.Refusal("SLM_ERR_NONFINITE", "u", np.flatnonzero(~np.isfinite(u))[0], "finite")
        r = u / np.sqrt(np.mean(np.float64(u)**2, axis=1, keepdims=True) + self.config.eps)
        r = slm.bf16.from_float32(np.float32(r * (1 if gamma is None else gamma)))
        return {"r": slm.bf16.to_float32(r)}
    def supports(self, config, op, n_tokens):
        return config.dtype == "f32" or "binary32 only"
class Silent(slm.Backend):
    def rmsnorm(self, *, u, gamma=None):
        return {"r": u.sum()}
END
judge 1 wrong:Raises --only 'rmsnorm/values/*'
names '^FAIL .* rmsnorm/values/six-eight' "an exception"
names 'returned SLM_ERR_INTERNAL \(LookupError: no such row\), must succeed' "an exception"
names 'wrong.py", line 4, in rmsnorm' "its traceback"
judge 1 wrong:Silent --only 'rmsnorm/values/*'
names 'output r has shape \[\], must have \[2, 2\]' "a wrong shape"

judge 0 "wrong:Coarse declared=yes" --only 'rmsnorm/*'
judge 1 wrong:Coarse --only 'rmsnorm/*'
names 'with this declared \(A1\): store of r 2\^-8 \(bf16\)' "bf16 that nobody declared"

"$python" -c 'import torch' 2>/dev/null || { skip "PyTorch is not here: the rest"; exit 0; }
both=("dtype=f32 mode=grouped" "dtype=bf16 mode=naive")
[ -n "${LONG:-}" ] && both+=("dtype=f32 mode=naive" "dtype=bf16 mode=grouped")
calls=()
for options in "${both[@]}"; do
    judge 0 "slm.torch_backend:TorchBackend $options device=cpu" --not 'layer/k3/*' "${calls[@]}"
    [ -n "${LONG:-}" ] || calls=(--once)
    echo "python: torch $options: $(tail -n 1 "$out/stdout")"
done
judge 0 "$client/examples/released_model.py:SmallModel" --only 'layer/*' --not 'layer/k3/*'
echo "python: released model's names: $(tail -n 1 "$out/stdout")"

planted() { # $1: class; $2: clause and stage; $3: cases
    judge 1 "broken:$1" --only "$3"
    names "$2" "$1"
    echo "python: planted $1: $(grep -oE "$2" "$out/stdout" | head -n 1)"
}
planted BiasLeak 'R3  stage weight' 'layer/profiles/*'
planted NoUpCap 'L1  stage h' 'situ/*'
planted EpsOnSum 'L2  stage r' 'layer/tiny-aggregate/*'
planted Undeclared 'with this declared \(A1\): store of [a-z]+ 2\^-8 \(bf16\)' 'ffn/*'
planted Undeclared 'with this declared \(A1\): input 2\^-8 \(bf16 factors\)' 'layer/profiles/*'
planted Raises "AttributeError: 'Raises' object has no attribute 'no_such_thing'" 'layer/profiles/paper'
