/* A number for a cluster's name: a machine may be a node of several clusters, each of which has a job 1. */
#ifndef NCCLMON_CLUSTER_H
#define NCCLMON_CLUSTER_H

#include <stdint.h>

static inline uint32_t cluster_hash(const char *name)
{
	uint32_t hash = 2166136261u; /* FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/ */

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 16777619u;
	return hash;
}

#endif
