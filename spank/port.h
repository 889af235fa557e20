/* A port for each step's NCCL RAS service. */
#ifndef NCCLMON_PORT_H
#define NCCLMON_PORT_H

#include <stdint.h>

/* Lies in 20000..29999: outside the ports that Linux hands out by itself (32768 and up) and those that Slurm uses.
 * Two steps of one job never share a port as long as their ids are less than 9973 apart; nor do those of two jobs
 * whose ids are less than 163 apart while step ids stay below 61. The cluster's name tells equal ids apart where two
 * clusters share a machine. */
static inline uint32_t ras_port(const char *cluster, uint32_t job, uint32_t step)
{
	const uint32_t base = 20000, count = 9973; /* a prime */
	uint64_t hash = 2166136261u; /* FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/ */

	for (; *cluster; cluster++)
		hash = ((hash ^ (unsigned char)*cluster) * 16777619u) & UINT32_MAX;
	return base + (uint32_t)((hash + (uint64_t)job * 61 + step) % count);
}

#endif
