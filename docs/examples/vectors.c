/* Compare a port with a file of `rope-xp vectors`: cc vectors.c -lm && ./a.out FILE.safetensors */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *header, *data;

/* Return a tensor, NULL if the file has none; its bytes and the length of its last axis. */
static void *find(const char *prefix, const char *name, long *bytes, long *last) {
    char key[512];
    long start, end;
    snprintf(key, sizeof key, "\"%s/%s\":{", prefix, name);
    char *entry = strstr(header, key);
    if (!entry) return *bytes = 0, NULL;
    char *number = strchr(strstr(entry, "\"shape\":["), ']');
    while (strchr("0123456789", number[-1])) number--;
    sscanf(strstr(entry, "\"data_offsets\":["), "\"data_offsets\":[%ld,%ld", &start, &end);
    return *bytes = end - start, *last = atol(number), data + start;
}

/* Rotate a head by an angle for each pair. A port calls its own code here. */
static void rotate(const float *x, float *y, const double *angle, double factor, const long long *pairs, long n) {
    for (long i = 0; i < n; i++) {
        double a = factor * x[pairs[i]], b = factor * x[pairs[n + i]];
        y[pairs[2 * n + i]] = a * cos(angle[i]) - b * sin(angle[i]);
        y[pairs[3 * n + i]] = b * cos(angle[i]) + a * sin(angle[i]);
    }
}

int main(int count, char **words) {
    const char *arrays[2][2] = {{"q", "q_rotated"}, {"k", "k_rotated"}};
    const long limit = 1 << 28;
    unsigned long long length;
    int compared = 0, wrong = 0;
    FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
    if (!file || fread(&length, 8, 1, file) != 1) return fprintf(stderr, "no file\n"), 2;
    header = calloc(length + 1, 1), data = malloc(limit);
    if (fread(header, 1, length, file) != length || !fread(data, 1, limit, file)) return 2;
    for (char *end = header; (end = strstr(end, "/positions\":{")); end++) {
        char *start = end, kind[256], group[256]; /* "kind" and "kind/case" */
        long bytes, last, n, width;
        while (start[-1] != '"') start--;
        snprintf(group, sizeof group, "%.*s", (int)(end - start), start);
        snprintf(kind, sizeof kind, "%.*s", (int)(strchr(start, '/') - start), start);
        long long *p = find(group, "positions", &bytes, &last), tokens = bytes / 8;
        long long *axes = find(kind, "axes", &bytes, &last), components = 1;
        for (long i = 0; i < bytes / 8; i++) components = axes[i] < components ? components : axes[i] + 1;
        long long *pairs = find(kind, "pairs", &bytes, &n);
        double *w = find(group, "frequencies", &bytes, &last), *angle = malloc(bytes + 8);
        double *factor = find(kind, "attention_factor", &bytes, &last);
        double bound = *(double *)find(kind, "tolerance", &bytes, &last), worst;
        for (int k = 0; k < 2; k++, compared++, wrong += worst > bound) {
            float *expected = find(group, arrays[k][1], &bytes, &width);
            float *x = find(group, arrays[k][0], &bytes, &width), *y = malloc(bytes);
            long total = bytes / 4, heads = total / width / (tokens / components);
            memcpy(y, x, bytes), worst = 0;
            for (long h = 0; pairs && h < total / width; h++) {
                for (long i = 0; i < n; i++)
                    angle[i] = w[i] * p[(axes ? axes[i] : 0) * (tokens / components) + h / heads];
                rotate(x + h * width, y + h * width, angle, *factor, pairs, n);
            }
            for (long i = 0; i < total; i++) {
                double off = fabs((double)y[i] - expected[i]);
                worst = off >= 0 ? fmax(worst, off) : INFINITY; /* NaN is wrong too */
                if (isinf(worst)) break;
            }
            if (worst > bound) printf("%s/%s is off by %.1e\n", group, arrays[k][0], worst);
        }
    }
    printf("%d arrays compared, %d wrong\n", compared, wrong);
    return !compared || wrong;
}
