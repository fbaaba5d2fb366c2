/* Runs one kernel on a memory image and writes the image back: arm_driver IMAGE RESULT.

The image is int64s: workers, number of the record's and of the crew's segment, count of segments; then of each segment
its address where the image was taken, its size, 1 if it holds addresses; then the segments' bytes, padded to 8.
Addresses of the image are moved to where the segments lie here before the kernel runs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kernel(void *record, int64_t worker, int64_t crew);

typedef struct {
    int64_t address, size, holds_addresses;
} Segment;

static void must(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "arm_driver: %s\n", what);
        exit(2);
    }
}

static int64_t moved(int64_t value, const Segment *segments, char **places, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (value >= segments[i].address && value < segments[i].address + segments[i].size)
            return (int64_t)(places[i] + (value - segments[i].address));
    return value;
}

int main(int argc, char **argv) {
    must(argc == 3, "two arguments");
    FILE *image = fopen(argv[1], "rb");
    must(image != NULL, "no image");
    int64_t head[4];
    must(fread(head, sizeof head, 1, image) == 1, "no head");
    int64_t count = head[3];
    Segment *segments = malloc(count * sizeof *segments);
    char **places = malloc(count * sizeof *places);
    must(fread(segments, sizeof *segments, count, image) == (size_t)count, "no segments");
    for (int64_t i = 0; i < count; i++) {
        size_t padded = (segments[i].size + 7) / 8 * 8;
        places[i] = aligned_alloc(4096, (padded + 4095) / 4096 * 4096);
        must(places[i] && fread(places[i], padded, 1, image) == 1, "image cut short");
    }
    for (int64_t i = 0; i < count; i++)
        for (int64_t at = 0; segments[i].holds_addresses && at + 8 <= segments[i].size; at += 8) {
            int64_t value;
            memcpy(&value, places[i] + at, 8);
            value = moved(value, segments, places, count);
            memcpy(places[i] + at, &value, 8);
        }
    for (int64_t worker = 0; worker < head[0]; worker++)
        kernel(places[head[1]], worker, (int64_t)places[head[2]]);
    FILE *result = fopen(argv[2], "wb");
    must(result != NULL, "no result");
    for (int64_t i = 0; i < count; i++)
        must(fwrite(places[i], (segments[i].size + 7) / 8 * 8, 1, result) == 1, "result not written");
    return fclose(result) != 0;
}
