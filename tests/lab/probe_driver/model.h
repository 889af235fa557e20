/* A small model of collectives over a network: which transfers a rank makes, and what each waits for. */
#ifndef MODEL_H
#define MODEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MOST_RANKS 32
#define MOST_CHANNELS 4
#define MOST_LINKS 6 /* of a rank and channel: a tree's node has three neighbours, both ways */
#define CREDITS 8    /* steps of a connection in flight, as in NCCL */

/* What both ends of a connection see of it; steps over all operations. */
struct edge {
	_Atomic uint64_t granted; /* receive buffers posted */
	_Atomic uint64_t sent;
};

struct world {
	int ranks, channels, steps, operations;
	bool tree;
	struct edge edge[MOST_RANKS][MOST_RANKS][MOST_CHANNELS];
};

/* One direction to one peer. Steps of the present operation: posted >= ready (by the GPU) or moved (by the network) >= done. */
struct link {
	int peer;
	bool sends;
	uint64_t needs; /* bits of receiving links: before step k is produced, k + 1 (ring: k) of each must be consumed */
	int posted, moved, done, produced;
	void *handle, *step[CREDITS];
};

/* A rank's links for one channel: ring to the next rank, or tree (a heap) up to the parent and down again. */
int model_links(const struct world *w, int rank, struct link links[MOST_LINKS]);

/* Steps of an operation on a connection. */
int model_steps(const struct world *w);

/* Whether the GPU can produce the next step of `link`. */
bool model_ready(const struct world *w, const struct link *links, const struct link *link);

#endif
