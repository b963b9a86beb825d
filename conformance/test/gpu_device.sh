#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The folder for a machine with a GPU: moved, in an empty environment it judges ref with nothing but
# the C library from here; the backend gpu says what is missing; check.sh ends at once without a
# device, and rehearsed on the emulator it tells a clean tool from one that found something, refused
# the device, or saw nothing.
set -u
library=$BUILD/../../libslm-gpu.so emulated=$BUILD/../../libslm-gpu-emu.so
[ -f "$library" ] || { echo "gpu_device: skipped, the backend gpu is not part of this build (nvcc)"; exit 77; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
fail() { echo "gpu_device: $*"; exit 1; }
bare() { (cd / && exec env -i PATH=/usr/bin:/bin "$@"); }

"$SOURCE/gpu/device/prebuild.sh" "$out/made" "$library" || exit 1
"$SOURCE/gpu/device/prebuild.sh" "$out/made" "$library" 2>/dev/null && fail "a folder that exists is taken"
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
    [ $code = 77 ] || [ $code = 4 ] || { cat "$out/log"; fail "gpu exits $code"; }
    grep -qE 'gpu: left out: (no CUDA device|libcublas)' "$out/log" || { cat "$out/log"; fail "gpu does not say what is missing"; }
    began=$SECONDS
    bare bash "$folder/check.sh" "$out/logs" >"$out/log" 2>&1
    code=$?
    [ $code = 77 ] || { cat "$out/log"; fail "check.sh exits $code without a device"; }
    grep -qE '^check: no device: .*(no CUDA device|libcublas)' "$out/log" || { cat "$out/log"; fail "check.sh does not say what is missing"; }
    [ $((SECONDS - began)) -le 30 ] || fail "check.sh takes $((SECONDS - began)) s to see that there is no device"
fi
[ -f "$emulated" ] || { echo "gpu_device: $(du -sm "$folder" | cut -f1) MiB; not rehearsed without the emulator"; exit 0; }

# In the place of the device the emulator, of compute-sanitizer a tool of which it is known what it
# finds.
cp "$emulated" "$folder/lib/slm/libslm-gpu.so"
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
row() { grep -qE "^\| $1 \| $2 \|" "$out/device-check/table.md" || { cat "$out/log" "$out"/device-check/*.log; fail "$1 is not '$2'"; }; }
row device ok
row suite ok
row memcheck ok
row racecheck FAILED
row initcheck 'not available'
row synccheck FAILED # no summary: it saw nothing
row bench ok
[ "$(wc -l <"$out/device-check/suite.jsonl")" -gt 10 ] || fail "no report of the suite"

# Without the tool its four rows are `not available`, and that is no failure.
rm "$out/bin/compute-sanitizer"
[ -x /usr/local/cuda/bin/compute-sanitizer ] && { echo "gpu_device: moved, alone, and rehearsed"; exit 0; }
(cd "$out" && env -i PATH="/usr/bin:/bin" SLM_CHECK=rehearsal bash "$folder/check.sh" "$out/again" >"$out/log" 2>&1) ||
    { cat "$out/log"; fail "without compute-sanitizer all is well, and check.sh exits $?"; }
[ "$(grep -c '| not available |' "$out/again/table.md")" = 4 ] || fail "four tools are not here"
echo "gpu_device: $(du -sm "$folder" | cut -f1) MiB, moved, alone, and rehearsed"
