#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The folder for a machine with a GPU: moved, in an empty environment it judges ref with nothing but
# the C library from here; the backend gpu says what is missing; check.sh ends at once without a
# device, and rehearsed on the emulator it tells a clean tool from one that found something, refused
# the device, or saw nothing, and times the backend beside its peers. It builds everything once
# more: with LONG=1 only.
set -u
[ -n "${LONG:-}" ] || { echo "gpu_device: skipped, takes a minute: conformance/quickstart test --long"; exit 77; }
built=$BUILD/../..
library=$built/libslm-gpu.so emulated=$built/libslm-gpu-emu.so
[ -f "$library" ] && [ -f "$built/libslm-gpu-loop.so" ] && [ -f "$built/libslm-gpu-roof.so" ] || { echo "gpu_device: skipped, the backend gpu is not part of this build (nvcc)"; exit 77; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
fail() { echo "gpu_device: $*"; exit 1; }
bare() { (cd / && exec env -i PATH=/usr/bin:/bin "$@"); }

"$SOURCE/gpu/device/prebuild.sh" "$out/made" "$built" || exit 1
"$SOURCE/gpu/device/prebuild.sh" "$out/made" "$built" 2>/dev/null && fail "a folder that exists is taken"
rm -rf "$out/made-build"
mv "$out/made" "$out/moved to"
folder="$out/moved to"

for program in slmoe slmoe-host; do
    bare ldd "$folder/bin/$program" | awk -v folder="$folder/" '
        /not found/ { print; bad = 1 }
        $3 ~ /^\// && index($0, folder) == 0 && $1 !~ /^(libc|libm|libdl|librt|libpthread)\.so/ { print; bad = 1 }
        END { exit bad }' || fail "$program needs libraries of this machine"
done
grep -rlF "$SOURCE/vectors" "$folder/share" && fail "a path of the source tree"

env -i PATH=/nonexistent "$folder/bin/slmoe" run -b ref --tier smoke >"$out/log" 2>&1 </dev/null || { cat "$out/log"; fail "ref"; }
grep -qE '^[1-9][0-9]* passed, 0 failed' "$out/log" || { cat "$out/log"; fail "ref ran nothing"; }
bare "$folder/bin/slmoe" run -b gpu --tier smoke >"$out/log" 2>&1
code=$?
if [ $code = 0 ]; then
    echo "gpu_device: a device is here; gpu/device/check.sh has the rest"
else
    [ $code = 77 ] || { cat "$out/log"; fail "gpu exits $code"; }
    grep -qE 'gpu: left out: no CUDA device: ' "$out/log" || { cat "$out/log"; fail "gpu does not say what is missing"; }
    bare "$folder/bin/slmoe" bench -b gpu-loop --shape tiny >"$out/log" 2>&1
    [ $? = 77 ] || { cat "$out/log"; fail "a bench of gpu-loop exits with another code than 77"; }
    began=$SECONDS
    bare bash "$folder/check.sh" "$out/logs" >"$out/log" 2>&1
    code=$?
    [ $code = 77 ] || { cat "$out/log"; fail "check.sh exits $code without a device"; }
    grep -qE '^check: no device: .*no CUDA device: ' "$out/log" || { cat "$out/log"; fail "check.sh does not say what is missing"; }
    [ $((SECONDS - began)) -le 30 ] || fail "check.sh takes $((SECONDS - began)) s to see that there is no device"
fi

# A library that lacks what comes with a device has no device; one that is broken or away has a fault.
cat >"$out/needs.c" <<'END'
int cublas_is_not_here(void);
const char *slm_gpu_missing(void) { return cublas_is_not_here() ? 0 : ""; }
END
echo 'int cublas_is_not_here(void) { return 1; }' >"$out/cublas.c"
cp -r "$folder" "$out/other"
"${CC:-cc}" -shared -fPIC -Wl,-soname,libcublas.so.99 "$out/cublas.c" -o "$out/libcublas.so.99" &&
    "${CC:-cc}" -shared -fPIC "$out/needs.c" "$out/libcublas.so.99" -o "$out/other/lib/slm/libslm-gpu.so" || exit 1
gone() { # $1: exit code; $2: what is said
    bare "$out/other/bin/slmoe" run -b gpu --tier smoke >"$out/log" 2>&1
    [ $? = "$1" ] && grep -q "$2" "$out/log" || { cat "$out/log"; fail "no exit code $1 with '$2'"; }
}
gone 77 'gpu: left out: no CUDA device: libcublas.so.99: '
echo "no library" >"$out/other/lib/slm/libslm-gpu.so"
gone 4 'gpu: left out: .*libslm-gpu.so: '
rm "$out/other/lib/slm/libslm-gpu.so"
gone 4 'gpu: left out: libslm-gpu.so is not where slmoe-host is'
rm -r "$out/other"

[ -f "$emulated" ] || { echo "gpu_device: $(du -sm "$folder" | cut -f1) MiB; not rehearsed without the emulator"; exit 0; }

# In the place of the device the emulator, of compute-sanitizer a tool of which it is known what it
# finds.
cp "$emulated" "$folder/lib/slm/libslm-gpu.so"
cp "$built/libslm-gpu-loop-emu.so" "$folder/lib/slm/libslm-gpu-loop.so"
cp "$built/libslm-gpu-roof-emu.so" "$folder/lib/slm"
mkdir "$out/bin"
cat >"$out/bin/compute-sanitizer" <<'END'
#!/usr/bin/env bash
while [ $# -gt 0 ]; do
    case $1 in
    --tool) tool=$2; shift 2 ;;
    --log-file) file=${2//%p/$$}; shift 2 ;;
    --target-processes | --error-exitcode) shift 2 ;;
    *) break ;;
    esac
done
case $tool in
memcheck) "$@" && echo "========= ERROR SUMMARY: 0 errors" >"$file" ;;
racecheck) "$@"; echo "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)" >"$file"; exit 86 ;;
initcheck) echo "========= Error: Device not supported" >"$file"; exit 1 ;;
*) "$@" ;;
esac
END
chmod +x "$out/bin/compute-sanitizer"
(cd "$out" && env -i PATH="$out/bin:/usr/bin:/bin" SLM_CHECK=rehearsal bash "$folder/check.sh" >"$out/log" 2>&1)
code=$?
[ $code = 1 ] || { cat "$out/log"; fail "a tool with findings, and check.sh exits $code"; }
row() { grep -qE "^\| $1 \| ($2) \|" "$out/device-check/table.md" || { cat "$out/log" "$out"/device-check/*.log; fail "$1 is not '$2'"; }; }
row device ok
row suite ok
row memcheck ok
row racecheck FAILED
row initcheck 'not available'
row synccheck FAILED # no summary: it saw nothing
for step in decode prefill; do
    row bench-$step ok
    grep -qE "^\| bench-$step .* bf16 T [0-9]+: [0-9.e+-]+ ms, (no share|disturbed)" "$out/device-check/table.md" || fail "bench-$step says no time"
    grep -qE '"kind":"row".*"backend":"gpu-loop",.*"quartiles"' "$out/device-check/bench-$step.jsonl" || fail "bench-$step has no peer"
    grep -qE '"kind":"roof","device":"emulated on the CPU, no GPU".*"emulated":true' "$out/device-check/bench-$step.jsonl" || fail "bench-$step has no roof"
done
row bench-route ok
row bench-tail ok
row bench ok
row torch 'not available|ok'
[ "$(wc -l <"$out/device-check/suite.jsonl")" -gt 10 ] || fail "no report of the suite"

# A share, and the peers' times, as one line.
said=$(awk -f "$folder/summary.awk" <<'END'
{"kind":"bench","backend":"gpu"}
{"kind":"row","op":"layer_forward","dtype":"bf16","T":16,"backend":"gpu","roof":0.0005,"disturbed":false,"quartiles":[0.0009,0.001,0.0011],"bound":"bytes"}
{"kind":"row","op":"layer_forward","dtype":"bf16","T":16,"backend":"gpu-loop","roof":0.0005,"disturbed":false,"quartiles":[0.0018,0.002,0.0021],"bound":"bytes","versus":"gpu","ratio":0.5}
{"kind":"row","op":"select","dtype":"f32","T":8,"backend":"gpu","roof":0.0005,"disturbed":true,"quartiles":[0.0009,0.001,0.0011],"bound":"flops"}
{"kind":"row","op":"select","dtype":"f32","T":9,"backend":"gpu","roof":0.0005,"disturbed":false,"quartiles":[0.0009,0.001,0.0011],"bound":"flops"}
END
)
[ "$said" = "bf16 T 16: 1 ms, 50 % of the bandwidth, gpu-loop takes 2.00x; select f32 T 8: 1 ms, disturbed; select f32 T 9: 1 ms, 50 % of the f32 rate" ] ||
    fail "summary.awk says '$said'"

# Without the tool its four rows are `not available`, and that is no failure.
rm "$out/bin/compute-sanitizer"
[ -x /usr/local/cuda/bin/compute-sanitizer ] && { echo "gpu_device: moved, alone, and rehearsed"; exit 0; }
(cd "$out" && env -i PATH="/usr/bin:/bin" SLM_CHECK=rehearsal bash "$folder/check.sh" "$out/again" memcheck racecheck initcheck synccheck >"$out/log" 2>&1) ||
    { cat "$out/log"; fail "without compute-sanitizer all is well, and check.sh exits $?"; }
[ "$(grep -c '| not available |' "$out/again/table.md")" = 4 ] || fail "four tools are not here"
echo "gpu_device: $(du -sm "$folder" | cut -f1) MiB, moved, alone, and rehearsed"
