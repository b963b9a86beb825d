/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_html.c - the page: whole, escaped, by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../report.h"
#include "../report_html.h"
#include "made_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *page_of(const html_page *page, size_t *size)
{
    char *text;
    FILE *out = open_memstream(&text, size);

    assert_non_null(out);
    html_write(out, page);
    fclose(out);
    return text;
}

static void holds(const char *text, const char *words)
{
    if (!strstr(text, words)) fail_msg("'%s' is not in the page", words);
}

static size_t count_of(const char *text, const char *words)
{
    size_t n = 0;

    for (; (text = strstr(text, words)) != NULL; text++) n++;
    return n;
}

/* ---- the form of a page ---- */

enum { DEPTH = 64, NAME = 16 };

/* Every tag that is opened is closed, in order; <x/> is both. Texts hold no '<'. */
static void is_balanced(const char *text)
{
    char open[DEPTH][NAME];
    size_t depth = 0;

    for (text = strstr(text, "<html"); (text = strchr(text, '<')) != NULL;) {
        const int closes = text[1] == '/';
        const char *name = text + 1 + closes, *end = strchr(name, '>');
        const size_t length = strcspn(name, " />\n");

        assert_non_null(end);
        assert_true(length > 0 && length < NAME);
        if (closes) {
            assert_true(depth > 0);
            if (strlen(open[--depth]) != length || strncmp(open[depth], name, length))
                fail_msg("<%s> is closed by %.20s", open[depth], text);
        } else if (end[-1] != '/') {
            assert_true(depth < DEPTH);
            snprintf(open[depth++], NAME, "%.*s", (int)length, name);
        }
        text = end;
    }
    assert_int_equal(depth, 0);
}

/* Nothing is fetched: what refers, refers into the page; and nothing is imported. */
static void asks_for_nothing(const char *text)
{
    assert_int_equal(count_of(text, " src="), 0);
    assert_int_equal(count_of(text, "@import"), 0);
    assert_int_equal(count_of(text, "url("), 0);
    assert_int_equal(count_of(text, "fetch("), 0);
    assert_int_equal(count_of(text, " href="),
                     count_of(text, " href=\"#") + count_of(text, " href=\"data:,\""));
}

/* No id twice, and every link within the page arrives. */
static void links_arrive(const char *text)
{
    for (const char *at = text; (at = strstr(at, " href=\"#")) != NULL; at++) {
        char id[64];

        snprintf(id, sizeof id, " id=\"%.*s\"", (int)strcspn(at + 8, "\""), at + 8);
        if (count_of(text, id) != 1) fail_msg("%s: %zu times", id, count_of(text, id));
    }
}

static void is_a_page(const char *text)
{
    is_balanced(text);
    asks_for_nothing(text);
    links_arrive(text);
}

/* ---- tests ---- */

static void the_page_of_a_run_says_what_the_run_says(void **state)
{
    static const clause_heading titles[] = {{"L2", "Aggregate & norm"}};
    char why[RUN_WHY], *text;
    run_file *run =
        made_load(MADE_RUN MADE_PASS MADE_FAIL MADE_SKIP MADE_END MADE_TOTAL, why);
    const html_page page = {.run = run, .n_clauses = 1, .clauses = titles};
    size_t size;

    (void)state;
    if (!run) fail_msg("%s", why);
    text = page_of(&page, &size);
    is_a_page(text);
    holds(text, "<strong>Does not conform</strong>");
    holds(text, "accumulator 2^-24, inputs exact, z stored at 2^-8");
    holds(text, "<td>Aggregate &amp; norm</td>");
    holds(text, "<a href=\"#b1-f1\" data-q=\"clause:L2\">1</a>");
    holds(text, "<dt>got</dt><dd class=\"v\">nan</dd>");
    holds(text, "<dd>no bound holds it</dd>");
    holds(text, "class=\"f-bad\" x=\"597.0\""); /* at the end of its scale */
    holds(text, "<b>2</b> forced");
    holds(text, "<b>1</b> tie");
    holds(text, "<td>no `select`</td><td class=\"num\">1</td>");
    assert_int_equal(count_of(text, "<tr class=\"item\""), 3);
    free(text);
    run_file_free(run);
}

/* Texts that break out of whatever does not escape them, each with a number. */
enum { HOSTILE = 64, HOSTILE_TEXT = 48 };

typedef struct hostile_texts {
    char text[HOSTILE][HOSTILE_TEXT];
    int n;
} hostile_texts;

static const char *hostile(hostile_texts *texts)
{
    char *text = texts->text[texts->n];

    assert_true(texts->n < HOSTILE);
    snprintf(text, HOSTILE_TEXT, "~%02d\x1b</x><img/src=q>&\"'", texts->n++);
    return text;
}

static run_result hostile_result(hostile_texts *texts, judge_state state)
{
    return (run_result){.id = hostile(texts),
                        .family = hostile(texts),
                        .about = hostile(texts),
                        .note = hostile(texts),
                        .state = state,
                        .op = "op",
                        .provenance = hostile(texts),
                        .tier = "",
                        .n_clauses = 1,
                        .clauses = {hostile(texts)},
                        .n_stages = 1,
                        .stages = {{hostile(texts), 1, 1, 2.0}},
                        .reason = hostile(texts),
                        .clause = hostile(texts),
                        .stage = hostile(texts),
                        .place = hostile(texts),
                        .got = hostile(texts),
                        .want = hostile(texts),
                        .nearest = hostile(texts),
                        .output = hostile(texts),
                        .again = hostile(texts)};
}

static void no_text_breaks_out_of_its_place(void **state)
{
    hostile_texts texts = {.n = 0};
    run_result results[] = {hostile_result(&texts, JUDGE_FAIL)};
    run_part part = {.backend = hostile(&texts),
                     .name = hostile(&texts),
                     .version = hostile(&texts),
                     .url = hostile(&texts),
                     .note = hostile(&texts),
                     .n_levels = 1,
                     .levels = {hostile(&texts)},
                     .tier = hostile(&texts),
                     .selection = hostile(&texts),
                     .vectors = hostile(&texts),
                     .harness = hostile(&texts),
                     .spec = hostile(&texts),
                     .date = hostile(&texts),
                     .system = hostile(&texts),
                     .cpu = hostile(&texts),
                     .n_results = 1,
                     .results = results,
                     .failed = 1};
    run_file run = {.n_parts = 1, .parts = &part};
    const html_page page = {.run = &run, .no_balances = hostile(&texts)};
    size_t size;
    char *text = page_of(&page, &size);

    (void)state;
    is_a_page(text);
    assert_int_equal(count_of(text, "<img"), 0);
    assert_int_equal(count_of(text, "\x1b"), 0);
    for (int i = 0; i < texts.n; i++) {
        char want[128];

        snprintf(want, sizeof want,
                 "~%02d\xef\xbf\xbd&lt;/x&gt;&lt;img/src=q&gt;&amp;&quot;&#39;", i);
        holds(text, want);
    }
    free(text);
}

static void the_verdict_is_no_better_than_the_run(void **state)
{
    static const struct {
        judge_state state;
        const char *selection;
        bool certifiable;
        const char *verdict, *certified;
    } runs[] = {
        {JUDGE_PASS, "", true, "<strong>Conforms</strong>", "<p>Certifiable:"},
        {JUDGE_PASS, "--only 'x'", true, "a selection only:", "<p>The backend ran in"},
        {JUDGE_PASS, "", false, "<strong>Conforms</strong>", "<p>Not certifiable:"},
        {JUDGE_FAIL, "", true, "<strong>Does not conform</strong>", "<p>The backend"},
        {JUDGE_CRASH, "", true, "<strong>Does not conform</strong>", "<p>The backend"},
        {JUDGE_SKIP, "", true, "<strong>Nothing was judged</strong>", "<p>The backend"},
        {JUDGE_XFAIL, "", true, "<strong>Nothing was judged</strong>",
         "<p>The backend"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const report_class class = report_classify(runs[i].state);
        hostile_texts texts = {.n = 0};
        run_result result = hostile_result(&texts, runs[i].state);
        run_part part = {.backend = "",
                         .name = "",
                         .version = "",
                         .url = "",
                         .note = "",
                         .tier = "",
                         .vectors = "",
                         .harness = "",
                         .spec = "",
                         .date = "",
                         .system = "",
                         .cpu = "",
                         .selection = runs[i].selection,
                         .certifiable = runs[i].certifiable,
                         .n_results = 1,
                         .results = &result,
                         .passed = class == REPORT_PASSED,
                         .failed = class == REPORT_FAILED,
                         .skipped = class == REPORT_SKIPPED};
        run_file run = {.n_parts = 1, .parts = &part};
        const html_page page = {.run = &run};
        size_t size;
        char *text = page_of(&page, &size);

        is_a_page(text);
        holds(text, runs[i].verdict);
        holds(text, runs[i].certified);
        free(text);
    }
}

static void loads_are_drawn_as_long_as_they_are(void **state)
{
    int64_t load[] = {4, 0, 2, 2, 3, 1};
    const html_balance balances[] = {{"qb/made",
                                      {.n_experts = 2,
                                       .sum = 4,
                                       .before = load,
                                       .after = load + 2,
                                       .higher = load + 4}}};
    char why[RUN_WHY], *text;
    run_file *run =
        made_load(MADE_RUN MADE_PASS MADE_FAIL MADE_SKIP MADE_END MADE_TOTAL, why);
    const html_page page = {.run = run, .n_balances = 1, .balances = balances};
    size_t size;

    (void)state;
    if (!run) fail_msg("%s", why);
    text = page_of(&page, &size);
    is_a_page(text);
    holds(text, "<td class=\"num\">4</td>");
    assert_int_equal(count_of(text, "class=\"f-band\" width=\"200.0\""), 1);
    assert_int_equal(count_of(text, "class=\"f-band\" width=\"0.0\""), 1);
    assert_int_equal(count_of(text, "class=\"f-band\" width=\"100.0\""), 2);
    holds(text, "rest on the lower-id rule");
    holds(text, "not judged in this run");
    free(text);
    run_file_free(run);
}

static void a_thousand_cases_fit_into_half_a_megabyte(void **state)
{
    enum { CASES = 1000 };
    run_result *results = calloc(CASES, sizeof *results);
    char(*ids)[48] = calloc(CASES, sizeof *ids);
    run_part part = {.backend = "b",
                     .name = "n",
                     .version = "1",
                     .url = "",
                     .note = "",
                     .tier = "full",
                     .selection = "",
                     .vectors = "v",
                     .harness = "",
                     .spec = "",
                     .date = "",
                     .system = "",
                     .cpu = "",
                     .n_results = CASES,
                     .results = results,
                     .passed = CASES};
    run_file run = {.n_parts = 1, .parts = &part};
    const html_page page = {.run = &run};
    hostile_texts texts = {.n = 0};
    size_t size;
    char *text;

    (void)state;
    assert_true(results && ids);
    for (size_t i = 0; i < CASES; i++) {
        texts.n = 0;
        results[i] = hostile_result(&texts, JUDGE_PASS);
        snprintf(ids[i], sizeof ids[i], "family/of-some-length/case-%zu", i);
        results[i].id = ids[i];
        results[i].family = "family/of-some-length";
        results[i].note = "what is odd about this one, in some thirty words or so";
        results[i].provenance = "public-report";
        results[i].clauses[0] = "R2";
    }
    text = page_of(&page, &size);
    is_a_page(text);
    assert_int_equal(count_of(text, "<tr class=\"item\""), CASES);
    assert_int_equal(count_of(text, "<tbody class=\"family\""), 1);
    assert_true(size < 1 << 19);
    free(text);
    free(ids);
    free(results);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_of_a_run_says_what_the_run_says),
        cmocka_unit_test(no_text_breaks_out_of_its_place),
        cmocka_unit_test(the_verdict_is_no_better_than_the_run),
        cmocka_unit_test(loads_are_drawn_as_long_as_they_are),
        cmocka_unit_test(a_thousand_cases_fit_into_half_a_megabyte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
