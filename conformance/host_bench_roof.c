/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_bench_roof.c - the roof, measured in the process that times. */
#include "host_bench_roof.h"
#include "bench_roof.h"
#include "protocol.h"
#include "registry.h"

#include <dlfcn.h>
#include <stdio.h>

enum { ANSWER = 4096, WHY = 160 };

typedef int (*roof_measure)(double largest, char *json, size_t size);

json_t *host_roof_of_cpus(size_t threads, double largest)
{
    json_t *reading = json_array();
    bench_roof measured;

    if (!bench_roof_measure(&measured, threads, largest)) {
        json_decref(reading);
        return json_pack("{s:s, s:s}", "type", "refused", "why",
                         "roof: out of memory, or too many threads");
    }
    for (size_t i = 0; i < measured.n_sizes; i++)
        json_array_append_new(reading,
                              json_pack("[f, f, f]", measured.size[i],
                                        measured.bandwidth[i], measured.usual[i]));
    return json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:o}", "type", "roof", "kernel",
                     measured.kernel, "f32", measured.fma, "tile", measured.tile,
                     "bf16", measured.dot, "amx", measured.amx, "read", reading);
}

static json_t *missing(const char *why)
{
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "roof", "kernel", "", "device", "",
                     "missing", protocol_text(why, WHY));
}

/* The library stays loaded: what it left of CUDA's is the backends', too. */
json_t *host_roof_of_device(int emulated, double largest)
{
    const char *path = registry_roof(emulated);
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    roof_measure measure = NULL;
    char text[ANSWER];
    json_t *answer;

    if (!path) return missing("its library is not where slmoe-host is");
    if (!library) return missing(dlerror());
    *(void **)&measure = dlsym(library, "slm_roof_measure");
    if (!measure) return missing("its library has no slm_roof_measure");
    if (!measure(largest, text, sizeof text)) return missing(text);
    answer = json_loads(text, 0, NULL);
    if (!answer) return missing("its library's answer is no JSON");
    json_object_set_new(answer, "type", json_string("roof"));
    json_object_set_new(answer, "kernel", json_string("cublas"));
    return answer;
}
