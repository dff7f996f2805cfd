// Package all registers every guest: whoever imports it has all applications, loads and subjects. A new guest is one
// line here.
package all

import (
	_ "tare/internal/app/burn"
	_ "tare/internal/app/command"
	_ "tare/internal/app/http"
	_ "tare/internal/app/istiod"
	_ "tare/internal/app/mesh"
	_ "tare/internal/load/admission"
	_ "tare/internal/load/command"
	_ "tare/internal/load/connect"
	_ "tare/internal/load/exec"
	_ "tare/internal/load/fio"
	_ "tare/internal/load/fleet"
	_ "tare/internal/load/http"
	_ "tare/internal/load/probe"
	_ "tare/internal/load/push"
	_ "tare/internal/load/syscalls"
	_ "tare/internal/load/write"
	_ "tare/internal/subject/command"
	_ "tare/internal/subject/mesh/envoy"
	_ "tare/internal/subject/mesh/haproxy"
	_ "tare/internal/subject/mesh/injector"
	_ "tare/internal/subject/mesh/kernelmesh"
	_ "tare/internal/subject/mesh/nginx"
	_ "tare/internal/subject/mesh/plane"
	_ "tare/internal/subject/mesh/proxy"
	_ "tare/internal/subject/mesh/storebench"
	_ "tare/internal/subject/sandbox"
	_ "tare/internal/subject/tracer"
	_ "tare/internal/subject/variant"
)
