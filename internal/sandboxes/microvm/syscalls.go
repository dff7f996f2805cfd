package microvm

// Numbers of system calls in plans. They are those of x86-64, because the guest is an x86-64 machine, whatever the host
// is (arch/x86/entry/syscalls/syscall_64.tbl).
const (
	sysWrite         = 1
	sysOpen          = 2
	sysClose         = 3
	sysGetpid        = 39
	sysSocket        = 41
	sysExecve        = 59
	sysFcntl         = 72
	sysChdir         = 80
	sysMkdir         = 83
	sysUnlink        = 87
	sysSymlink       = 88
	sysChmod         = 90
	sysChown         = 92
	sysFchown        = 93
	sysUmask         = 95
	sysSetgroups     = 116
	sysSetresuid     = 117
	sysSetresgid     = 119
	sysCapset        = 126
	sysMknod         = 133
	sysPrctl         = 157
	sysChroot        = 161
	sysMount         = 165
	sysSethostname   = 170
	sysSetdomainname = 171
	sysFaccessat     = 269
	sysUnshare       = 272
	sysPrlimit64     = 302
	sysFinitModule   = 313
	sysOpenTree      = 428
	sysMoveMount     = 429
)
