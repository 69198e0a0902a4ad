/* Runs a kernel on an image of memory: aarch64 FILE. See tests/backends/cpu/test_aarch64.py. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int64_t rotate(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
               int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
void *rope_xp_allocate(int64_t size) { return malloc(size); }
void rope_xp_free(void *memory) { free(memory); }

static int64_t next(FILE *file) {
    int64_t value;
    if (fread(&value, sizeof value, 1, file) != 1) exit(3);
    return value;
}

int main(int count, char **names) {
    FILE *file = count == 2 ? fopen(names[1], "rb+") : NULL;
    if (!file) return 2;
    int64_t a[15];
    for (int i = 0; i < 15; i++) a[i] = next(file);
    int64_t ranges = next(file);
    for (int64_t i = 0; i < ranges; i++) {
        void *start = (void *)next(file);
        int64_t size = next(file);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        if (mmap(start, size, PROT_READ | PROT_WRITE, flags, -1, 0) != start) return 4;
    }
    long data = ftell(file);
    int64_t arrays = next(file);
    for (int64_t i = 0; i < arrays; i++) {
        void *start = (void *)next(file);
        size_t size = next(file);
        if (fread(start, 1, size, file) != size) return 5;
    }
    int64_t failed = rotate(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
                            a[11], a[12], a[13], a[14]);
    fseek(file, data, SEEK_SET);
    arrays = next(file);
    for (int64_t i = 0; i < arrays; i++) {
        void *start = (void *)next(file);
        size_t size = next(file);
        fseek(file, 0, SEEK_CUR); /* between reading and writing */
        if (fwrite(start, 1, size, file) != size) return 6;
        fseek(file, 0, SEEK_CUR);
    }
    return failed ? 7 : fclose(file) != 0;
}
