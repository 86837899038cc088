/* adapters/local/orphan.h: how a process shows which engine it belongs to. */
#pragma once

#include "base/base.h"

enum { ENGINE_TEXT_MAX = 48 };
/* The value of CAIRN_ENGINE: "pid:starttime" of this process, which no later process has. */
void engine_text(char out[ENGINE_TEXT_MAX]);
