// api.mjs: functional tests of the HTTP API. node api.mjs SUITE --url http://127.0.0.1:PORT [--key KEY] [--log FILE] [--pid PID] [--only TEXT]
//
//   main   all routes, on a server with --auth --log json:debug; --key is of an admin of all tenants, --log what the server writes
//   open   a server without authentication: who may ask, methods, HTTP itself
//   rate   a server with --rate 5 --auth
//   drain  the server is ended (--pid) while requests are open
//   share  a server with --auth on PostgreSQL, whose URL is --db: what one tenant may have under way
import { finish } from './harness.mjs'

const suites = {
  main: ['./api_runs.mjs', './api_signals.mjs', './api_append.mjs', './api_read.mjs', './api_tasks.mjs', './api_effects.mjs', './api_access.mjs', './api_repeat.mjs', './api_streams.mjs'],
  open: ['./api_open.mjs'],
  rate: ['./api_rate.mjs'],
  drain: ['./api_drain.mjs'],
  share: ['./api_share.mjs']
}
const files = suites[process.argv[2]]
if (!files) {
  console.error(`usage: node api.mjs ${Object.keys(suites).join('|')} --url URL [--key KEY] [--log FILE] [--pid PID] [--only TEXT]`)
  process.exit(2)
}
for (const file of files) await import(file)
await finish()
