// Command bench is inferrail-bench: it measures routing policies on the real router binary.
//
// What it is for: replaying the same requests at the same times over a cold fleet for each policy, and reporting what
// the engines counted and what a client saw. The router and its simulated engines run in a child process, built from
// ./xcaddy or given with -binary; the harness talks to it over HTTP alone, so what it measures is what is shipped.
//
// What it is not for: measuring the router's own overhead (client, router and engines share one machine's cores), or
// real engines' speed (the engines are simulated).
//
// Load is open loop: a session starts at its scheduled time whatever the others are doing, and time to first token
// counts from the scheduled time, so that a server that falls behind cannot hide its queueing. Within a chat the loop is
// closed, as it is for people: the next turn is scheduled a think time after the previous answer ended.
//
// Concurrency: one goroutine per session, started at once and asleep until its time; results are collected under one
// lock. Cost: a few KiB per session plus its request bodies; a token id of a prompt takes about six bytes.
package main
