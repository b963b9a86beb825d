#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch's autograd in binary64 agrees with the exact reference: the layer forward and backward, in every profile; a planted
# mistake does not. Needs Python with torch; skipped without.
set -u
client=$SOURCE/conformance/python
python=
for each in "${PYTHON:-python3}" /usr/bin/python3; do
    "$each" -c 'import torch' 2>/dev/null && python=$each && break
done
[ -n "$python" ] || { echo "autograd: no Python with torch here"; exit 77; }
# A sanitized library cannot be loaded into a plain interpreter.
[ "${SANITIZED:-}" = ON ] && { echo "autograd: skipped: a sanitized build"; exit 77; }
export PYTHONPATH=$client PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export SLM_LIBRARY=${SLM_LIBRARY:-$(dirname "$SLMOE")/libslm.so}
[ -e "$SLM_LIBRARY" ] || { echo "autograd: no $SLM_LIBRARY"; exit 77; }

"$python" "$client/autograd.py" "${TOKENS:-4}" || exit 1

# Its own layer spoilt, it must fail, and name what differs: weights without their normaliser's gradient.
planted=$("$python" - <<'END_OF_PYTHON'
import sys
import autograd


def weigh(self, logit, ids):
    s = logit.sigmoid().gather(1, ids)
    return s / s.sum(1, keepdim=True).detach()


autograd.Layer.weigh, autograd.PROFILES = weigh, ("paper",)
sys.exit(autograd.main(["0"]))
END_OF_PYTHON
)
[ $? = 1 ] || { echo "autograd: a planted mistake was not found"; exit 1; }
grep -q '^paper *dlogit .*FAIL' <<<"$planted" || { echo "autograd: dlogit was not named"; exit 1; }
grep -q '^paper *y .*FAIL' <<<"$planted" && { echo "autograd: y was named"; exit 1; }
echo "autograd: planted mistake found: $(grep -c FAIL <<<"$planted") tensors"
