// Command caddy is the Caddy web server with Inferrail's modules in it. It has all of Caddy's own commands; `caddy run`
// with a Caddyfile that uses the `inferrail` directive starts a router.
package main

import (
	_ "time/tzdata" // time zones on machines that have none

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard" // Caddy's own modules

	_ "github.com/inferrail/inferrail" // the router and the simulator
)

func main() { caddycmd.Main() }
