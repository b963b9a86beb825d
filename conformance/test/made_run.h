/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/made_run.h - run files made for a test. */
#ifndef SLM_MADE_RUN_H
#define SLM_MADE_RUN_H

#include "../run_file.h"

/* A temporary file with that text; `path` gets its name (MADE_PATH bytes). The caller
 * unlinks it. */
enum { MADE_PATH = 40 };
void made_file(char path[MADE_PATH], const char *text, size_t size);

/* Loads a text as a run. `why` gets the message, "" when there is none, without the
 * path. Texts of the run stay valid, its path does not. */
run_file *made_load(const char *text, char why[RUN_WHY]);

/* Lines of a whole run: one backend "./a.so"; a case passes, one fails, one is
 * skipped. */
#define MADE_RUN                                                                       \
    "{\"kind\":\"run\",\"format\":\"slm-run/1\",\"backend\":\"./a.so\",\"name\":"      \
    "\"a\",\"version\":\"1\",\"abi\":[1,0],\"levels\":[\"infer\"],\"certifiable\":"    \
    "true,\"arithmetic\":{\"accumulator\":5.9604644775390625e-8,\"store\":{\"z\":"     \
    "0.00390625}},\"tier\":\"quick\",\"vectors\":\"abc\"}\n"
#define MADE_PASS                                                                      \
    "{\"kind\":\"result\",\"backend\":\"./a.so\",\"case\":\"rmsnorm/made/good\","      \
    "\"state\":\"PASS\",\"clauses\":[\"L2\",\"R5\"],\"op\":\"rmsnorm\","               \
    "\"provenance\":"                                                                  \
    "\"hand\",\"tier\":\"smoke\",\"stages\":[{\"stage\":\"r\",\"checked\":6,"          \
    "\"failed\":0,\"used\":0.25}],\"seconds\":0.5,\"judge_seconds\":0,\"about\":"      \
    "\"made\",\"tokens\":{\"forced\":2,\"free\":0,\"tie\":1},\"controls\":{\"zeros\":" \
    "\"fails\"}}\n"
#define MADE_FAIL                                                                      \
    "{\"kind\":\"result\",\"backend\":\"./a.so\",\"case\":\"rmsnorm/made/bad\","       \
    "\"state\":\"FAIL\",\"clauses\":[\"L2\"],\"op\":\"rmsnorm\",\"provenance\":"       \
    "\"hand\",\"stages\":[{\"stage\":\"r\",\"checked\":6,\"failed\":1,\"used\":"       \
    "\"inf\"}],\"seconds\":0,\"clause\":\"L2\",\"finding\":{\"stage\":\"r\","          \
    "\"place\":\"r[0,1]\",\"got\":\"nan\",\"want\":\"0x1p-2\",\"multiple\":\"inf\"},"  \
    "\"again\":\"slmoe run\"}\n"
#define MADE_SKIP                                                                      \
    "{\"kind\":\"result\",\"backend\":\"./a.so\",\"case\":\"select/made/none\","       \
    "\"state\":\"SKIP\",\"clauses\":[],\"op\":\"select\",\"provenance\":\"ref\","      \
    "\"stages\":[],\"seconds\":0,\"reason\":\"no `select`\"}\n"
#define MADE_END                                                                       \
    "{\"kind\":\"end\",\"backend\":\"./a.so\",\"passed\":1,\"failed\":1,\"skipped\":"  \
    "1,\"seconds\":2.5}\n"
#define MADE_TOTAL                                                                     \
    "{\"kind\":\"total\",\"passed\":1,\"failed\":1,\"skipped\":1,\"seconds\":2.5}\n"

#endif
