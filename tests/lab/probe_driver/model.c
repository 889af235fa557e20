/* A small model of collectives over a network. */
#include "model.h"

#include <string.h>

static void add(struct link *link, int peer, bool sends, uint64_t needs)
{
	memset(link, 0, sizeof(*link));
	link->peer = peer;
	link->sends = sends;
	link->needs = needs;
}

int model_links(const struct world *w, int rank, struct link links[MOST_LINKS])
{
	int parent = (rank - 1) / 2, count = 0;
	uint64_t children = 0, source;

	if (!w->tree) {
		add(&links[0], (rank + w->ranks - 1) % w->ranks, false, 0);
		add(&links[1], (rank + 1) % w->ranks, true, 1);
		return 2;
	}
	for (int child = 2 * rank + 1; child <= 2 * rank + 2 && child < w->ranks; child++) {
		children |= 1ull << count;
		add(&links[count++], child, false, 0);
	}
	source = children; /* of what goes down: at the root, all that came up */
	if (rank > 0) {
		add(&links[count++], parent, true, children);
		source = 1ull << count;
		add(&links[count++], parent, false, 0);
	}
	for (int child = 2 * rank + 1; child <= 2 * rank + 2 && child < w->ranks; child++)
		add(&links[count++], child, true, source);
	return count;
}

int model_steps(const struct world *w)
{
	return w->tree ? w->steps : 2 * (w->ranks - 1);
}

bool model_ready(const struct world *w, const struct link *links, const struct link *link)
{
	for (int i = 0; i < MOST_LINKS; i++) {
		if (link->needs >> i & 1 && links[i].done < link->produced + (w->tree ? 1 : 0))
			return false;
	}
	return link->produced < model_steps(w);
}
