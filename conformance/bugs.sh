#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# conformance/bugs.sh - spec/bugs.md from conformance/mutants/mutants.def; prints it.
#
#   conformance/bugs.sh >spec/bugs.md
#
# A report in a sentence is "(PROJECT NUMBER)"; a project that is not in the table below is an error.
set -eu
cd "$(dirname "$0")/.."

cat <<'END'
# Bugs that this suite finds

Each line is a wrong backend that comes with the suite: a right one with this single deviation. `slmoe mutants` judges all of
them and fails if one survives. Where a public report of such a bug was the model, it is linked; that says nothing about what the
project does today.

See one fail: `slmoe run -b mutant:bias-leaks-into-weights`. When your backend fails in the way of one of them, the verdict
says "looks like" and its name.

This file is made by `conformance/bugs.sh` from `conformance/mutants/mutants.def`.

END

awk '
function die(text) { print "bugs: " text >"/dev/stderr"; broken = 1; exit 1 }
# The next string of the line; the line loses it.
function string(    text) {
    if (!match(line, /"[^"]*"/)) die(FILENAME ":" FNR ": expected a string")
    text = substr(line, RSTART + 1, RLENGTH - 2)
    line = substr(line, RSTART + RLENGTH)
    return text
}
BEGIN {
    split("amd/IRON IRON antirez/ds4 apple/coremltools ByteDance-Seed/Triton-distributed databricks/megablocks " \
          "deepspeedai/DeepSpeed flashinfer-ai/flashinfer ggml-org/llama.cpp gfyddha/FlyLoRA jingyaogong/minimind " \
          "karpathy/llm.c kekzl/imp linkedin/Liger-Kernel meta-pytorch/MSLK ml-explore/mlx MooreThreads/torchada " \
          "Neroued/ninfer NVIDIA-NeMo/Automodel NVIDIA/cccl NVIDIA/cudnn-frontend NVIDIA/Megatron-LM " \
          "NVIDIA/TensorRT-LLM NVIDIA/TransformerEngine " \
          "pytorch/pytorch pytorch/torchtitan sgl-project/sglang vllm-project/vllm", list, " ")
    for (i in list) {
        name = list[i]
        home[tolower(name)] = name
        sub(/.*\//, "", name)
        home[tolower(name)] = list[i]
    }
}
FILENAME ~ /spec\.md$/ {
    if ($1 == "###" && $2 ~ /^[A-Z][0-9]+$/) {
        clause = $2
        sub(/^### [A-Z0-9]+ /, "")
        title[clause] = $0
        order[++n_clauses] = clause
    }
    next
}
/^X\(/ {
    line = $0
    name = string()
    clause = string()
    what = string()
    report = ""
    if (match(what, / \([^()]+ [0-9]+\)$/)) {
        split(substr(what, RSTART + 2, RLENGTH - 3), word, " ")
        what = substr(what, 1, RSTART - 1)
        # A fork of its own.
        if (word[1] == "Megatron-LM" && word[2] == 94) place = "radixark/Megatron-LM"
        else place = home[tolower(word[1])]
        if (!place) die(FILENAME ":" FNR ": " word[1] ": where is that project?")
        report = "[" word[1] " " word[2] "](https://github.com/" place "/issues/" word[2] ")"
        n_reports++
    }
    if (!(clause in title)) die(FILENAME ":" FNR ": " clause ": no such clause")
    gsub(/\|/, "\\|", what)
    rows[clause] = rows[clause] "| `" name "` | " what " | " report " |\n"
    n++
}
END {
    if (broken) exit 1
    printf "%d bugs, %d with a public report.\n", n, n_reports
    for (i = 1; i <= n_clauses; i++) {
        clause = order[i]
        if (!rows[clause]) continue
        printf "\n## %s %s\n\n| mutant | what it does wrong | report |\n|---|---|---|\n%s", clause, title[clause], rows[clause]
    }
}' spec/spec.md conformance/mutants/mutants.def
