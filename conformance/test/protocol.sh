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

# $1: a sed script; $2: exit code; $3: what must be said.
twisted() {
    sed "$1" "$out/testee.py" >"$out/twisted.py"
    cmp -s "$out/testee.py" "$out/twisted.py" && fail "nothing to change by $1"
    "$SLMOE" run -b "cmd:python3 $out/twisted.py" --only 'rmsnorm/values/six-eight' --format human --format jsonl="$out/jsonl" >"$out/stdout" 2>&1
    [ $? = "$2" ] && cat "$out/stdout" "$out/jsonl" | grep -qF "$3" || fail "after $1: $(cat "$out/stdout")"
}
twisted 's/abi=\[1, 1\]/abi=[9, 0]/' 4 'its hello says `abi` [9, 0]; this suite judges [1, N]'
twisted 's/reply("hello"/reply("refused", why="no such machine")\n&/' 4 'twisted.py: refused to run: no such machine'
twisted 's/offered=f32/offered=1/' 1 'its reply to supports lacks `offered`, which is true or false'
twisted 's/reason="" if f32 else "binary32 only"/reason=""/; s/offered=f32/offered=False/' 5 'the backend gave no reason'
twisted 's/bytes=0)/bytes="0")/' 1 'its reply to workspace lacks `bytes`, which is an integer'
twisted 's/bytes=0)/bytes=1 << 39)/' 1 'asks for 549755813888 bytes of workspace; this machine can give '
twisted 's/^    request = json.loads(line)$/&\n    if request["type"] == "call":\n        reply("fault", offset=16384, write=True)\n        os._exit(139)/' 1 \
    'exited with 139 instead of an answer: wrote 0 bytes past the end of r'
echo "protocol: the testee of spec/protocol.md conforms"
