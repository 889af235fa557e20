/* What the site writes behind the plugin in plugstack.conf. Pure text: no SPANK. */
#ifndef NCCLMON_SITE_H
#define NCCLMON_SITE_H

#include <stdint.h>

#include "options.h"

/* Paths are absolute; NULL means "not given" where no default stands here. */
struct site {
	struct options defaults; /* given: the site watches every step */
	const char *ncclmon; /* the monitor, on compute nodes */
	const char *srun; /* NULL: the srun that the user runs */
	const char *probe_plugin; /* NCCL's profiler plugin, on compute nodes */
	const char *config; /* the monitor's site file, NULL: its own default */
	uint32_t min_tasks; /* smaller steps are watched only when the user asks */
	int delay_ms; /* a step that ends within this time gets no monitor */
};

/* Reads the arguments. Whatever is wrong is passed to `complain` and left at its default: a site's mistake breaks no
 * job. The strings of `arguments` are kept, not copied. */
void site_parse(struct site *site, int count, char *const arguments[], void (*complain)(const char *message));

#endif
