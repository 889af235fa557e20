/* sbatch and salloc: check what the user asks for. Slurm itself carries the option to the sruns of the job. */
#include "contexts.h"
#include "request.h"

static struct site site;

void alloc_init(spank_t spank, int count, char *arguments[])
{
	read_site(&site, count, arguments);
	request_register(spank, &site);
}

void alloc_options_read(void)
{
	struct request request;

	request_settle(&request);
}
