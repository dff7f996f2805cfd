// Package all registers every guest (package kind): a program that imports it has all applications, loads and subjects.
// A new guest needs one line here.
package all

import (
	_ "tare/internal/mesh/admission"
	_ "tare/internal/mesh/clusterservices"
	_ "tare/internal/mesh/connect"
	_ "tare/internal/mesh/envoy"
	_ "tare/internal/mesh/fleet"
	_ "tare/internal/mesh/haproxy"
	_ "tare/internal/mesh/injector"
	_ "tare/internal/mesh/istiod"
	_ "tare/internal/mesh/kernelmesh"
	_ "tare/internal/mesh/nginx"
	_ "tare/internal/mesh/plane"
	_ "tare/internal/mesh/push"
	_ "tare/internal/mesh/services"
	_ "tare/internal/mesh/storebench"
	_ "tare/internal/sandboxes/subject"
	_ "tare/internal/sandboxes/syscalls"
	_ "tare/internal/tracing/exec"
	_ "tare/internal/tracing/tracer"
	_ "tare/internal/workloads/app/burn"
	_ "tare/internal/workloads/app/command"
	_ "tare/internal/workloads/app/http"
	_ "tare/internal/workloads/load/command"
	_ "tare/internal/workloads/load/fio"
	_ "tare/internal/workloads/load/http"
	_ "tare/internal/workloads/load/probe"
	_ "tare/internal/workloads/load/write"
	_ "tare/internal/workloads/subject/installed"
	_ "tare/internal/workloads/subject/variant"
)
