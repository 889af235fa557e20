/* What the user of this command asks for: option, environment and site, merged. */
#ifndef NCCLMON_REQUEST_H
#define NCCLMON_REQUEST_H

#include <slurm/spank.h>

#include "common.h"

struct request {
	bool watch;
	bool asked; /* by the user, not by the site alone */
	char effective[OPTIONS_MAX];
};

/* Registers the option. `site` must outlive it. */
void request_register(spank_t spank, const struct site *site);

/* Merges site < environment < option; to be called once all options are read.
 * A wrong environment variable ends a command that submits, as a wrong option does. Inside a running job it costs the
 * watch and not the job. */
void request_settle(struct request *request);

#endif
