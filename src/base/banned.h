/* base/banned.h: functions that invite overruns, hidden state or silent errors do not compile here
 * (the idea is git's). Use str and buf, str_take_int(), time_format_us() and file_* instead. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BANNED(func) sorry_##func##_is_banned

#undef strcpy
#define strcpy(dst, src) BANNED(strcpy)
#undef strcat
#define strcat(dst, src) BANNED(strcat)
#undef strncpy
#define strncpy(dst, src, n) BANNED(strncpy)
#undef strncat
#define strncat(dst, src, n) BANNED(strncat)
#undef sprintf
#define sprintf(...) BANNED(sprintf)
#undef vsprintf
#define vsprintf(...) BANNED(vsprintf)
#undef strtok
#define strtok(s, delim) BANNED(strtok)
#undef atoi
#define atoi(s) BANNED(atoi)
#undef atol
#define atol(s) BANNED(atol)
#undef localtime
#define localtime(t) BANNED(localtime)
#undef gmtime
#define gmtime(t) BANNED(gmtime)
#undef ctime
#define ctime(t) BANNED(ctime)
