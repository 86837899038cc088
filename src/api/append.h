/* api/append.h: the two routes that append events; events.c lists them beside those that read. */
#pragma once

#include "api/impl.h"

void post_run_events(struct call *call);
void post_events(struct call *call);
