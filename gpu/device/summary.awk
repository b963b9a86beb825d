# SPDX-License-Identifier: Apache-2.0
# The JSON lines of `slmoe bench -b gpu -b PEER.. --vs gpu` as one line: for each row of gpu its
# share, and of what, and how many times as long each peer takes.
function text(key,    at, rest)
{
    at = index($0, "\"" key "\":\"")
    if (!at) return ""
    rest = substr($0, at + length(key) + 4)
    return substr(rest, 1, index(rest, "\"") - 1)
}
function number(key,    at)
{
    at = index($0, "\"" key "\":")
    return at ? substr($0, at + length(key) + 3) + 0 : 0
}
function median(    at, rest, q)
{
    at = index($0, "\"quartiles\":[")
    rest = at ? substr($0, at + 13) : "0,0"
    split(rest, q, ",")
    return q[2] + 0
}
function disturbed() { return index($0, "\"disturbed\":true") }
function share()
{
    if (!median()) return "not timed: " text("skipped")
    if (disturbed()) return sprintf("%.3g ms, disturbed", 1e3 * median())
    if (!number("roof")) return sprintf("%.3g ms, no share", 1e3 * median())
    return sprintf("%.3g ms, %.0f %% of the %s", 1e3 * median(), 100 * number("roof") / median(),
                   text("bound") == "bytes" ? "bandwidth" : text("dtype") " rate")
}
text("kind") != "row" { next }
text("backend") == "gpu" {
    printf "%s%s%s T %d: %s", some, text("op") == "layer_forward" ? "" : text("op") " ", text("dtype"), number("T"), share()
    some = "; "
    next
}
number("ratio") > 0 { printf ", %s takes %.2fx", text("backend"), 1 / number("ratio") }
END { print "" }
