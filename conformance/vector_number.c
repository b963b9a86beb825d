/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_number.c - numbers as golden vectors write them. */
#include "vector_number.h"

#include "yaml_tree.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* (-1)^negative m 2^e; `wide`: more than 60 significant bits, m is then useless. */
typedef struct binary {
    int negative;
    int wide;
    uint64_t m;
    long e;
} binary;

/* A real type: p significant bits, values are multiples of 2^least below 2^limit. */
typedef struct format {
    int p;
    int least;
    int limit;
} format;

static format format_of(slm_dtype type)
{
    switch (type) {
    case SLM_F32:
        return (format){24, -149, 128};
    case SLM_BF16:
        return (format){8, -133, 128};
    default:
        return (format){53, -1074, 1024};
    }
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int hex_digit(char c)
{
    if (is_digit(c)) return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* An optional sign and digits; clamped to +-10^6, which no type reaches. */
static const char *read_exponent(const char *at, long *out)
{
    const int negative = *at == '-';
    long value = 0;

    if (*at == '+' || *at == '-') at++;
    if (!is_digit(*at)) return NULL;
    for (; is_digit(*at); at++)
        if (value < 1000000) value = 10 * value + (*at - '0');
    if (value > 1000000) value = 1000000;
    *out = negative ? -value : value;
    return at;
}

static void add_digit(binary *out, int digit, int behind_point)
{
    if (out->m >> 60) {
        if (digit) out->wide = 1;
        if (!behind_point) out->e += 4;
        return;
    }
    out->m = out->m << 4 | (uint64_t)digit;
    if (behind_point) out->e -= 4;
}

static int read_hex(const char *text, binary *out)
{
    const char *at = text;
    long exponent;

    *out = (binary){.negative = *at == '-'};
    at += out->negative;
    if (strncmp(at, "0x", 2) != 0 || hex_digit(at[2]) < 0) return 0;
    for (at += 2; hex_digit(*at) >= 0; at++) add_digit(out, hex_digit(*at), 0);
    if (*at == '.') {
        if (hex_digit(*++at) < 0) return 0;
        for (; hex_digit(*at) >= 0; at++) add_digit(out, hex_digit(*at), 1);
    }
    if (*at != 'p') return 0;
    at = read_exponent(at + 1, &exponent);
    if (!at || *at) return 0;
    out->e += exponent;
    return 1;
}

static void strip(binary *number)
{
    while (number->m && !(number->m & 1)) {
        number->m >>= 1;
        number->e++;
    }
}

static int significant_bits(uint64_t m)
{
    int n = 0;

    for (; m; m >>= 1) n++;
    return n;
}

/* Whether the number is a value of the type, and which; `why` may be NULL. */
static int represent(binary number, slm_dtype type, const char *text, double *value,
                     char *why)
{
    const format into = format_of(type);
    const char *name = slm_dtype_name(type);
    char shown[VEC_SHOWN], reason[80] = "";
    int width;

    if (number.m == 0 && !number.wide) {
        *value = number.negative ? -0.0 : 0.0;
        return 1;
    }
    strip(&number);
    width = significant_bits(number.m);
    if (number.wide)
        snprintf(reason, sizeof reason,
                 "needs more than 60 significant bits, %s has %d", name, into.p);
    else if (width > into.p)
        snprintf(reason, sizeof reason, "needs %d significant bits, %s has %d", width,
                 name, into.p);
    else if (number.e + width > into.limit)
        snprintf(reason, sizeof reason, "is beyond the largest %s", name);
    else if (number.e < into.least)
        snprintf(reason, sizeof reason, "is no multiple of 0x1p%d, the smallest %s",
                 into.least, name);
    if (reason[0]) {
        if (why) snprintf(why, NUMBER_WHY, "%s %s", vec_show(shown, text), reason);
        return 0;
    }
    *value = ldexp((double)number.m, (int)number.e);
    if (number.negative) *value = -*value;
    return 1;
}

/* A decimal as digits d_1 .. d_n and d 10^e, without zeros at either end. */
enum { MAX_DIGITS = 40 };
typedef struct decimal {
    int negative;
    size_t n; /* may exceed MAX_DIGITS: the rest is not kept */
    char digit[MAX_DIGITS];
    long e;
} decimal;

/* Sign, digits with a point, exponent. `strict` refuses +1, .5, 1. and 007. */
static int read_decimal(const char *text, int strict, decimal *out)
{
    const char *at = text;
    size_t digits = 0, zeros = 0;
    long exponent = 0;
    int point = 0;

    *out = (decimal){.negative = *at == '-'};
    if (*at == '-' || (!strict && *at == '+')) at++;
    if (strict && (!is_digit(at[0]) || (at[0] == '0' && is_digit(at[1])))) return 0;
    for (; is_digit(*at) || (*at == '.' && !point); at++) {
        if (*at == '.') {
            point = 1;
            if (strict && !is_digit(at[1])) return 0;
            continue;
        }
        digits++;
        if (point) out->e--;
        if (*at == '0') {
            zeros++;
            continue;
        }
        for (; out->n && zeros; zeros--, out->n++)
            if (out->n < MAX_DIGITS) out->digit[out->n] = '0';
        zeros = 0;
        if (out->n < MAX_DIGITS) out->digit[out->n] = *at;
        out->n++;
    }
    if (digits == 0) return 0;
    if (*at == 'e' || *at == 'E') at = read_exponent(at + 1, &exponent);
    if (!at || *at) return 0;
    out->e += exponent + (long)zeros;
    if (out->n == 0) out->e = 0;
    return 1;
}

/* d 10^e = (d 5^e) 2^e as a binary: 1, or 0 when it has no finite or no short one, or -1
 * when there are too many digits to tell. */
static int to_binary(const decimal *from, binary *out)
{
    long e = from->e;

    *out = (binary){.negative = from->negative, .e = e};
    if (from->n > 19) return -1;
    for (size_t i = 0; i < from->n; i++)
        out->m = 10 * out->m + (uint64_t)(from->digit[i] - '0');
    if (out->m == 0) return 1;
    strip(out);
    for (; e < 0; e++) {
        if (out->m % 5) return 0;
        out->m /= 5;
    }
    for (; e > 0; e--)
        if (__builtin_mul_overflow(out->m, (uint64_t)5, &out->m)) return 0;
    return 1;
}

/* A decimal float where bits matter: say what to write. */
static void explain_decimal(const char *text, const decimal *number, slm_dtype type,
                            char *why)
{
    const char *what = "is decimal: its bits are not what is written";
    char shown[VEC_SHOWN], hex[NUMBER_TEXT];
    binary exact;
    double value;
    const int finite = to_binary(number, &exact);

    vec_show(shown, text);
    if (finite > 0 && represent(exact, type, text, &value, NULL)) {
        number_write(value, hex);
        snprintf(why, NUMBER_WHY, "%s %s; write %s", shown, what, hex);
    } else if (finite < 0 || type == SLM_BF16) {
        snprintf(why, NUMBER_WHY, "%s %s; write a hexadecimal float", shown, what);
    } else {
        number_write(type == SLM_F32 ? (double)strtof(text, NULL) : strtod(text, NULL),
                     hex);
        snprintf(why, NUMBER_WHY, "%s %s; no %s is exactly that, the nearest is %s",
                 shown, what, slm_dtype_name(type), hex);
    }
}

static int read_word(const char *text, double *value)
{
    if (strcmp(text, "nan") == 0)
        *value = (double)NAN;
    else if (strcmp(text, "inf") == 0)
        *value = (double)INFINITY;
    else if (strcmp(text, "-inf") == 0)
        *value = -(double)INFINITY;
    else
        return 0;
    return 1;
}

int number_real(const char *text, slm_dtype type, double *value, char *why)
{
    char shown[VEC_SHOWN];
    binary number;
    decimal wrong;

    if (read_word(text, value)) return 1;
    if (read_hex(text, &number)) return represent(number, type, text, value, why);
    if (read_decimal(text, 0, &wrong))
        explain_decimal(text, &wrong, type, why);
    else
        snprintf(why, NUMBER_WHY,
                 "expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
                 "'%s'",
                 vec_show(shown, text));
    return 0;
}

static int read_digits(const char *at, uint64_t *value, int *fits)
{
    if (!is_digit(at[0]) || (at[0] == '0' && at[1])) return 0;
    *value = 0;
    *fits = 1;
    for (; is_digit(*at); at++)
        if (__builtin_mul_overflow(*value, (uint64_t)10, value) ||
            __builtin_add_overflow(*value, (uint64_t)(*at - '0'), value))
            *fits = 0;
    return *at == 0;
}

int number_integer(const char *text, slm_dtype type, int64_t *value, char *why)
{
    const uint64_t most = type == SLM_I32 ? (uint64_t)INT32_MAX : (uint64_t)INT64_MAX;
    const int negative = *text == '-';
    char shown[VEC_SHOWN];
    uint64_t size;
    int fits;

    if (!read_digits(text + negative, &size, &fits) || (negative && text[1] == '0')) {
        snprintf(why, NUMBER_WHY, "expected a decimal integer, got '%s'",
                 vec_show(shown, text));
        return 0;
    }
    if (!fits || size > most + (uint64_t)negative) {
        snprintf(why, NUMBER_WHY, "%s does not fit in %s", vec_show(shown, text),
                 slm_dtype_name(type));
        return 0;
    }
    *value = negative && size ? -(int64_t)(size - 1) - 1 : (int64_t)size;
    return 1;
}

int number_size(const char *text, uint64_t *value, char *why)
{
    char shown[VEC_SHOWN];
    int fits;

    if (!read_digits(text, value, &fits)) {
        snprintf(why, NUMBER_WHY, "expected a decimal integer >= 0, got '%s'",
                 vec_show(shown, text));
        return 0;
    }
    if (fits) return 1;
    snprintf(why, NUMBER_WHY, "%s does not fit in 64 bits", vec_show(shown, text));
    return 0;
}

static int same_decimal(const decimal *a, const decimal *b)
{
    return a->n == b->n && a->n <= MAX_DIGITS && a->e == b->e &&
           memcmp(a->digit, b->digit, a->n) == 0;
}

int number_decimal(const char *text, double *value, char *why)
{
    char shown[VEC_SHOWN], shortest[NUMBER_TEXT] = "";
    decimal written, read;

    if (read_word(text, value)) return 1;
    if (!read_decimal(text, 1, &written)) {
        snprintf(why, NUMBER_WHY, "expected a decimal number like 1e-6, got '%s'",
                 vec_show(shown, text));
        return 0;
    }
    *value = strtod(text, NULL);
    if (isinf(*value)) {
        snprintf(why, NUMBER_WHY, "%s does not fit in f64", vec_show(shown, text));
        return 0;
    }
    for (int p = 1; p <= 17; p++) {
        snprintf(shortest, sizeof shortest, "%.*g", p, *value);
        if (strtod(shortest, NULL) == *value) break;
    }
    if (read_decimal(shortest, 1, &read) && same_decimal(&written, &read)) return 1;
    snprintf(why, NUMBER_WHY, "%s is kept as f64, which denotes %s; write that",
             vec_show(shown, text), shortest);
    return 0;
}

/* Normalised also below 2^-1022, whatever the C library's %a does. */
void number_write(double value, char *out)
{
    char digits[16];
    const char *sign = signbit(value) ? "-" : "";
    uint64_t fraction;
    size_t n = 13;
    int exponent;

    if (!isfinite(value)) {
        snprintf(out, NUMBER_TEXT, "%s",
                 isnan(value) ? "nan"
                 : value < 0  ? "-inf"
                              : "inf");
        return;
    }
    if (value == 0) {
        snprintf(out, NUMBER_TEXT, "%s0x0p+0", sign);
        return;
    }
    fraction = (uint64_t)ldexp(frexp(fabs(value), &exponent), 53);
    snprintf(digits, sizeof digits, "%013" PRIx64, fraction & 0xfffffffffffffu);
    while (n && digits[n - 1] == '0') n--;
    snprintf(out, NUMBER_TEXT, "%s0x1%s%.*sp%+d", sign, n ? "." : "", (int)n, digits,
             exponent - 1);
}
