/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/main.c - slmoe: judges implementations of the Stable LatentMoE layer. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
    const char *help;
} verb;

#define SELECTION                                                                      \
    "  --vectors DIR      read vectors from there\n"                                   \
    "  --only GLOB        cases whose id matches; may be repeated\n"                   \
    "  --not GLOB         but not these; may be repeated\n"                            \
    "  --tag T            cases with that tag\n"                                       \
    "  --clause C         cases of that clause, e.g. R2 or 'Q*'\n"                     \
    "  --provenance P     hand, document, oracle, ref or public-report\n"              \
    "  --tier TIER        smoke (< 2 s), quick (< 30 s, the default) or full\n"

static const verb verbs[] = {
    {"run", cli_run, "judge a backend on the golden vectors",
     "usage: slmoe run [-b BACKEND]... [options]\n"
     "  -b, --backend B    ref, cpu, cpu-blas, gpu, gpu-emu, the path of a plug-in "
     "(./libmine.so),\n"
     "                     or cmd:COMMAND; without it every built-in backend is "
     "judged\n" SELECTION
     "  --format F[=FILE]  human (the default), jsonl, junit, tap, tap13; repeatable\n"
     "  -j, --jobs N       N processes at once (1)\n"
     "  --shard I/N        every Nth case, from the Ith on\n"
     "  --xfail FILE       strict list of expected failures: GLOB STATE TRACKER a "
     "line\n"
     "  --max-fail N       end a backend's run after N failures\n"
     "  --once             one call a case, for simulators: nothing of reuse and "
     "memory\n"
     "                     is seen, never certifiable\n"
     "  --in-process       for a debugger: no process of its own, never certifiable\n"
     "  --timeout S        seconds a call may take (120)\n"
     "  --slow N           times N, under valgrind and the like\n"
     "  -v, --verbose      also print passed and skipped cases\n"
     "exit: 0 conforms, 1 does not, 2 usage, 3 harness error, 4 backend not loadable,\n"
     "      5 nothing executed, 6 bad vectors, 77 no device\n"},
    {"list", cli_list_cases, "name the cases that a selection holds",
     "usage: slmoe list [options]\n" SELECTION
     "  -v, --verbose      also clauses, provenance and what a family is about\n"},
    {"show", cli_show, "print a case: inputs, expected values, what they mean",
     "usage: slmoe show CASE [--vectors DIR]\n"
     "  CASE is an id, or a glob that matches one case\n"},
    {"explain", cli_explain, "print a clause of the specification and its vectors",
     "usage: slmoe explain CLAUSE [--vectors DIR]\n"
     "  CLAUSE is R2, L1, ...; without one the clauses are listed\n"},
    {"gen", cli_gen, "write golden values with ref, or check all of them",
     "usage: slmoe gen [--check] [options]\n"
     "  Without --check: writes the values of provenance ref into their files and "
     "renews\n"
     "  vectors/MANIFEST. With --check: recomputes the values of every provenance and\n"
     "  compares to the last bit; writes nothing; exits 1 on a difference.\n"
     "  --check\n" SELECTION},
    {"mutants", cli_mutants, "prove that the suite can fail: judge wrong backends",
     "usage: slmoe mutants [options]\n"
     "  Judges every wrong backend of conformance/mutants; all must fail, and each "
     "family\n"
     "  must kill the mutants that it names.\n" SELECTION
     "  -j, --jobs N       N at once (1)\n"
     "  --format F         md or csv: the matrix of mutants, families and stages\n"
     "  --essential        what each family kills alone; exit 1 when one kills "
     "nothing\n"},
    {"trace", cli_trace, "clauses against vectors and mutants",
     "usage: slmoe trace [--format md|csv] [-j N] [options]\n"
     "  Exit 1 when a clause lacks a family, or a mutant that dies, without an "
     "excuse.\n" SELECTION},
    {"report", cli_report, "make a page of a run: verdict, stages, failures in full",
     "usage: slmoe report RUN.jsonl --html[=FILE] [--vectors DIR]\n"
     "  RUN.jsonl is of `slmoe run --format jsonl=RUN.jsonl`. The page is one HTML "
     "file that\n"
     "  needs nothing else; without FILE it goes to stdout.\n"
     "exit: 0 written, 2 usage or a run file that is not whole, 3 not written\n"},
    {"diff", cli_diff, "compare two runs",
     "usage: slmoe diff BEFORE.jsonl AFTER.jsonl\n"
     "  Tells cases whose state changed, new and missing ones, and stages whose share "
     "of the\n"
     "  bound changed more than twofold. Worse is: a state that fell, a passed case "
     "that is\n"
     "  gone, a share that grew.\n"
     "exit: 0 nothing got worse, 1 something did, 2 usage or a run file that is not "
     "whole\n"},
    {"probe", cli_probe,
     "print what a backend declares and which conventions it follows",
     "usage: slmoe probe -b BACKEND [--vectors DIR]\n"},
    {"bench", cli_bench, "time backends that are right, beside what is possible",
     "usage: slmoe bench [-b BACKEND]... [--vs BACKEND] [options]\n"
     "  Judges each backend on the very shapes first: one that fails is not timed. "
     "Then "
     "measures\n"
     "  what the machine can do (the roof) and alternates batches of all backends.\n"
     "  -b, --backend B    as in run; may be repeated (cpu)\n"
     "  --vs B             time this one, too, and print how many times as long it "
     "takes;\n"
     "                     gpu-loop is gpu with a loop of cuBLAS's products over "
     "the experts\n"
     "  --shape S          a shape of vectors/perf/shapes.yaml; may be repeated "
     "(mini)\n"
     "  --op OP            an operation; may be repeated (layer_forward)\n"
     "  --dtype D          f32 or bf16; may be repeated (as the shape says)\n"
     "  --tokens LIST      batch sizes, 1,16,128 (as the shape says)\n"
     "  --experts LIST     numbers of experts instead of the shape's\n"
     "  --top-k LIST       numbers of chosen ones instead of the shape's\n"
     "  --threads LIST     OMP_NUM_THREADS of each table (all CPUs)\n"
     "  --phases           also where a call spends its time (cpu)\n"
     "  --seconds S        that a row may take when the machine is not quiet (6)\n"
     "  --format F[=FILE]  table (the default), jsonl, svg; repeatable\n"
     "  --shapes FILE      read shapes from there\n"
     "  --timeout S        seconds that a batch may take (600)\n"
     "exit: 0 timed, 1 a backend is wrong, 2 usage, 3 harness error, 4 backend not "
     "loadable,\n"
     "      5 nothing timed, 6 bad shapes, 77 no device\n"},
    {"new", cli_new, "start a backend: a plug-in project that builds and is judged",
     "usage: slmoe new backend DIR\n"
     "  Writes backend.c, CMakeLists.txt and README.md into DIR, which is made or is "
     "empty.\n"
     "  The last part of DIR names the library: DIR/build/libNAME.so. select, situ_glu "
     "and\n"
     "  rmsnorm are implemented and conform; the rest is NULL and skipped.\n"},
};

enum { N_VERBS = sizeof verbs / sizeof *verbs };

static void print_usage(FILE *out)
{
    fputs("slmoe " SLMOE_VERSION
          " judges implementations of the Stable LatentMoE layer\n"
          "usage: slmoe VERB [options]   (slmoe VERB --help says more)\n",
          out);
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(out, "  %-8s %s\n", verbs[i].name, verbs[i].summary);
}

static int asks_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    return 0;
}

/* --in-process: the same command by slmoe-inprocess, which lies beside this program and
 * holds the backend itself, so that a debugger sees both. Returns only on failure. */
static void go_in_process(char **argv)
{
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    size_t kept = 1;
    char *slash;

    path[length > 0 ? length : 0] = '\0';
    slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "slmoe-inprocess");
    for (size_t i = 1; argv[i]; i++)
        if (strcmp(argv[i], "--in-process") != 0) argv[kept++] = argv[i];
    argv[kept] = NULL;
    execv(path, argv);
    fprintf(stderr, "slmoe: %s: cannot be executed: %s\n", path, strerror(errno));
}

/* An answer that did not arrive is no answer: a full disk is told. */
static int finish(int code)
{
    if ((fflush(stdout) == 0 && !ferror(stdout)) || code != EXIT_CONFORMS) return code;
    fprintf(stderr, "slmoe: standard output cannot be written: %s\n", strerror(errno));
    return EXIT_HARNESS;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return finish(EXIT_CONFORMS);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("slmoe " SLMOE_VERSION ", specification " SLM_SPEC_VERSION
               ", ABI %d.%d\n",
               SLM_ABI_MAJOR, SLM_ABI_MINOR);
        return finish(EXIT_CONFORMS);
    }
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--in-process") == 0) {
            go_in_process(argv);
            return EXIT_HARNESS;
        }
    /* For the hosts: many short calls on cores that others use, too. */
    setenv("OMP_WAIT_POLICY", "passive", 0);
    for (size_t i = 0; i < N_VERBS; i++) {
        if (strcmp(argv[1], verbs[i].name) != 0) continue;
        if (asks_help(argc - 1, argv + 1)) {
            fputs(verbs[i].help, stdout);
            return finish(EXIT_CONFORMS);
        }
        return finish(verbs[i].run(argc - 1, argv + 1));
    }
    fprintf(stderr, "slmoe: %s: no such verb\n", argv[1]);
    print_usage(stderr);
    return EXIT_USAGE;
}
