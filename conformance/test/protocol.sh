#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The testee that spec/protocol.md prints conforms; one of another version of the protocol, or none at all, is refused.
set -u
fail() { echo "protocol: $*"; exit 1; }
command -v python3 >/dev/null || { echo "protocol: no python3 here"; exit 77; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

awk '/^```python$/ {on = 1; next} /^```$/ {on = 0} on' "$SOURCE/spec/protocol.md" >"$out/testee.py"
[ "$(wc -l <"$out/testee.py")" -gt 30 ] || fail "spec/protocol.md has no testee"
"$SLMOE" run -b "cmd:python3 $out/testee.py" --only 'rmsnorm/*' --only 'select/*' --format jsonl="$out/jsonl" --format human ||
    fail "the testee of spec/protocol.md does not conform"
grep -q '"state":"PASS"' "$out/jsonl" || fail "nothing was judged"
grep -q '"reason":"the backend has no `select`"' "$out/jsonl" || fail "what it lacks must be skipped"
grep -q '"reason":"binary32 only"' "$out/jsonl" || fail "what it declines must be skipped with its reason"

# The session is what a testee hears, to the letter.
sed 's/^    request = json.loads(line)$/    open("heard", "a").write(line)\n&/' "$out/testee.py" >"$out/listener.py"
(cd "$out" && "$SLMOE" run -b "cmd:python3 listener.py" --only 'rmsnorm/values/six-eight' >/dev/null) || fail "the listener does not conform"
grep '^< ' "$SOURCE/spec/protocol.md" | cut -c3- >"$out/session"
[ "$(wc -l <"$out/session")" = 5 ] || fail "spec/protocol.md has no session"
head -n 5 "$out/heard" | diff "$out/session" - || fail "this is not the session of spec/protocol.md"

# A wrong one is caught, and nothing else costs the run.
sed 's/mean + eps/mean/' "$out/testee.py" >"$out/wrong.py"
"$SLMOE" run -b "cmd:python3 $out/wrong.py" --only 'rmsnorm/*' >"$out/stdout" && fail "a testee without eps must not conform"
sed 's/protocol=1/protocol=99/' "$out/testee.py" >"$out/newer.py"
"$SLMOE" run -b "cmd:python3 $out/newer.py" >"$out/stdout" 2>&1
[ $? = 4 ] && grep -q 'not a hello of protocol 1' "$out/stdout" || fail "another protocol must be refused: $(cat "$out/stdout")"
"$SLMOE" run -b "cmd:$out/nothing" >"$out/stdout" 2>&1
[ $? = 4 ] && grep -q 'did not say hello' "$out/stdout" || fail "a command that is not there must be refused: $(cat "$out/stdout")"
echo "protocol: the testee of spec/protocol.md conforms"
