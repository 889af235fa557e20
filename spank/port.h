/* A port for the NCCL RAS service of each task. */
#ifndef NCCLMON_PORT_H
#define NCCLMON_PORT_H

#include <stdint.h>

#include "cluster.h"

/* `task` counts the tasks of one node. Lies in 20000..29972: outside the ports that Linux hands out by itself (32768 and
 * up) and those that Slurm uses. As 9973 is a prime, and 618 = 10 * 61 + 8, and 16 * 618 < 9973, there are no two equal
 * ports among
 *  - the tasks of one step,
 *  - the steps of one job whose ids are less than 618 apart, up to 16 tasks of each,
 *  - ten jobs with successive ids, up to 61 steps of each and 16 tasks of each step,
 *  - steps of equal id in jobs whose ids are less than 502 apart, up to 16 tasks of each.
 * The cluster's name tells equal ids apart where two clusters share a machine. tests/port.c counts it all. */
static inline uint32_t ras_port(const char *cluster, uint32_t job, uint32_t step, uint32_t task)
{
	const uint32_t base = 20000, count = 9973;

	return base + (uint32_t)((cluster_hash(cluster) + (uint64_t)job * 61 + step + (uint64_t)task * 618) % count);
}

#endif
