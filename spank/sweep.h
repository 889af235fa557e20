/* Removes what a step's probes left in memory on this node. */
#ifndef NCCLMON_SWEEP_H
#define NCCLMON_SWEEP_H

#include <stdbool.h>
#include <sys/types.h>

struct folder {
	const char *parent; /* absolute */
	const char *name; /* in it, the one to remove */
	uid_t uid; /* its owner, whose rights are used */
	gid_t gid;
};

/* Removes the *.frames of processes that are gone, and the folder if nothing else is in it. Links are not followed, and
 * nothing is done as root nor in a folder of somebody else's. Returns within a second, give or take; false when
 * something stayed. */
bool sweep(const struct folder *folder);

#endif
