// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/* The program that is executed, which does as little as possible. By its exit status 0 the worker knows that it ran. */

#include "sys.h"

ENTRY void _start(void)
{
	quit(0);
}
