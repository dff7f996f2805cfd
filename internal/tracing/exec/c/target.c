// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/* The program that the worker executes. It does as little as possible. Its exit status 0 shows that it was reached. */

#include "sys.h"

ENTRY void _start(void)
{
	quit(0);
}
