/* MPI's collectives, by the method of ci/peers/README.md. One JSON object a line, from rank 0.
 *
 *   mpicc -O3 mpi_peer.c -o mpi_peer
 *   mpirun -n 2 ./mpi_peer COLLECTIVE ITERATIONS BYTES [BYTES ...]
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ranks, rank;

/* Random floats in (-1, 1): never zeros, which memory systems and sums may treat specially. */
static void fill(float *buffer, size_t count) {
    uint64_t state = 0x9e3779b97f4a7c15u * (uint64_t)(rank + 1);
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        buffer[i] = (float)((double)(int64_t)state / 9.3e18);
    }
}

static int call(const char *name, float *whole, float *other, int count) {
    int part = count / ranks;
    MPI_Comm world = MPI_COMM_WORLD;
    if (!strcmp(name, "all_reduce")) return MPI_Allreduce(MPI_IN_PLACE, whole, count, MPI_FLOAT, MPI_SUM, world);
    if (!strcmp(name, "all_gather")) return MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, whole, part, MPI_FLOAT, world);
    if (!strcmp(name, "reduce_scatter"))
        return MPI_Reduce_scatter_block(whole, other, part, MPI_FLOAT, MPI_SUM, world);
    if (!strcmp(name, "all_to_all")) return MPI_Alltoall(whole, part, MPI_FLOAT, other, part, MPI_FLOAT, world);
    if (!strcmp(name, "broadcast")) return MPI_Bcast(whole, count, MPI_FLOAT, 0, world);
    if (!rank) fprintf(stderr, "no collective named %s\n", name);
    MPI_Abort(world, 1);
    return 1;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int iterations = argc > 2 ? atoi(argv[2]) : 0;
    if (argc < 4 || iterations < 1) {
        if (!rank) fprintf(stderr, "usage: %s COLLECTIVE ITERATIONS BYTES [BYTES ...]\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    double *times = malloc(iterations * sizeof *times);
    for (int a = 3; a < argc; a++) {
        size_t bytes = strtoull(argv[a], NULL, 10), count = bytes / sizeof(float);
        float *whole = malloc(bytes + 64), *other = malloc(bytes + 64);
        fill(whole, count), fill(other, count);
        for (int i = -2; i < iterations; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            call(argv[1], whole, other, (int)count);
            if (i >= 0) times[i] = (MPI_Wtime() - start) * 1e6;
        }
        /* An iteration takes as long as its slowest rank. */
        MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        qsort(times, iterations, sizeof *times, ascending);
        if (!rank) printf("{\"collective\": \"%s\", \"bytes\": %zu, \"us\": %.3f}\n", argv[1], bytes, times[iterations / 2]);
        fflush(stdout);
        free(whole), free(other);
    }
    free(times);
    MPI_Finalize();
    return 0;
}
