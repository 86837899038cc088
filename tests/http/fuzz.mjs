// fuzz.mjs: the contract fuzzer. node fuzz.mjs --url http://127.0.0.1:PORT [--requests 20000] [--seed N] [--key K] [--connections 8]
//
// Sends valid requests, requests with one rule broken, and hostile ones, over kept-alive connections, and lets contracts/openapi.json judge
// every answer. It fails (exit code 1) on: a 5xx other than a documented 503, a connection cut without an answer, an answer that the document
// does not allow, a broken request answered with 2xx, a valid one refused for a reason that is not plausible, a repeated request done twice.
import { Client, Connection, requestBytes } from './client.mjs'
import { Random, World, render, target } from './generate.mjs'
import { breakOne, hostile } from './mutate.mjs'
import { itemsOf, load } from './openapi.mjs'

const options = { url: '', requests: '20000', seed: String(Date.now() % 1000000), key: '', connections: '8', failures: '200' }
for (let i = 2; i < process.argv.length; i += 2) {
  const name = process.argv[i].replace(/^--/, '')
  if (!(name in options) || process.argv[i + 1] === undefined) {
    console.error('usage: node fuzz.mjs --url URL [--requests N] [--seed N] [--key KEY] [--connections N] [--failures N]')
    process.exit(2)
  }
  options[name] = process.argv[i + 1]
}
const seed = Number(options.seed)
const SHOWN_MAX = 2
const PLAUSIBLE = new Set([404, 409, 412, 422, 429, 503, 'SIGNAL_UNKNOWN', 'TASK_TOKEN_INVALID'])
// Operations that are dear, or that would change what all workers stand on.
const WEIGHT = { verifyLedger: 0.02, backupLedger: 0.02, archiveLedger: 0.05, getOpenApi: 0.1, getMetrics: 0.2, createKey: 0.3, checkpointRun: 0.5, appendRunEvents: 4, appendEvents: 2, startRun: 2, listRuns: 2, listRunEvents: 2 }

const api = load()
const table = new Map()
let passed = 0
let failed = 0
let skipped = 0

function count(id, status) {
  const row = table.get(id) ?? new Map()
  row.set(status, (row.get(status) ?? 0) + 1)
  table.set(id, row)
}

const plain = (text) => text.replace(/[\x00-\x1f\x7f-\x9f]/g, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, '0')}`)
const shown = (bytes) => plain(JSON.stringify(bytes.subarray(0, 1500).toString('latin1')).slice(1, -1))

// Each kind of failure is shown a few times and counted always.
const kinds = new Map()
function fail(world, what, raw, answer) {
  failed++
  const kind = what.replace(/: \{.*/, '').replace(/[\d%żl]+/g, '').slice(0, 70)
  kinds.set(kind, (kinds.get(kind) ?? 0) + 1)
  if (kinds.get(kind) > SHOWN_MAX) return
  console.log(`FAILED seed ${seed} worker ${world.name} request ${world.done}: ${plain(what)}`)
  console.log(`  request: ${shown(raw)}${raw.length > 1500 ? ` ... ${raw.length} bytes` : ''}`)
  if (answer.error) console.log(`  answer: none: ${answer.error}`)
  else console.log(`  answer: ${answer.status} ${JSON.stringify(answer.headers)} ${shown(answer.body)}`)
  if (failed >= Number(options.failures)) finish()
}

function finish() {
  const statuses = [...new Set([...table.values()].flatMap((row) => [...row.keys()]))].sort()
  const width = Math.max(...[...table.keys()].map((k) => k.length), 9)
  console.log(`${'operation'.padEnd(width)} ${statuses.map((s) => String(s).padStart(5)).join(' ')}`)
  for (const [id, row] of [...table].sort(([a], [b]) => (a < b ? -1 : 1))) {
    console.log(`${id.padEnd(width)} ${statuses.map((s) => String(row.get(s) ?? '').padStart(5)).join(' ')}`)
  }
  // A fuzzer that is turned away at the door finds nothing: most operations must have worked at least once.
  const asked = [...table].filter(([id]) => api.operations.some((op) => op.id === id))
  const worked = asked.filter(([, row]) => [...row.keys()].some((status) => status >= 200 && status < 300))
  if (Number(options.requests) >= 500 && worked.length < api.operations.length / 2) {
    console.log(`FAILED only ${worked.length} of ${api.operations.length} operations ever worked`)
    failed++
  }
  console.log(`seed ${seed}: ${passed} passed, ${failed} failed, ${skipped} skipped`)
  process.exit(failed ? 1 : 0)
}

// What every answer must be, whatever was asked. true: it is.
function judge(world, method, path, raw, answer, label) {
  if (answer.error) {
    fail(world, `${label}: ${answer.error}`, raw, answer)
    return false
  }
  if (answer.status >= 500 && ![503, 505].includes(answer.status)) {
    fail(world, `${label}: ${answer.status}`, raw, answer)
    return false
  }
  const wrong = api.check(method, path, answer.status, answer.headers, answer.body, { cut: answer.cut })
  if (wrong.length > 0) fail(world, `${label}: ${wrong.join('; ')}`, raw, answer)
  return wrong.length === 0
}

const jsonOf = (answer) => (/^application\/(problem\+)?json(;|$)/.test(answer.headers['content-type'] ?? '') && answer.body.length ? JSON.parse(answer.body.toString()) : undefined)
const linesOf = (answer) => itemsOf('application/x-ndjson', answer.body.toString())
const isGood = (answer) => answer.status < 300 || answer.status === 304

// Remembers ids that later requests can use.
function learn(world, req, answer) {
  const value = answer.status < 300 ? jsonOf(answer) : undefined
  if (!value) return
  const id = req.op.id
  req.accepted.forEach((f) => f())
  if (id === 'startRun') world.keep(world.started, value.runId)
  if (id === 'putPlan') world.keep(world.plans, value)
  if (id === 'createKey') world.keep(world.keys, { keyId: value.keyId })
  if (id === 'getKey' || id === 'updateKey') {
    const key = world.keys.find((k) => k.keyId === value.keyId)
    if (key && answer.headers.etag) key.etag = answer.headers.etag
  }
  if (answer.headers.etag && ['getRun', 'getPlan'].includes(id)) world.seen.set(id, { args: req.args, etag: answer.headers.etag })
  if (id === 'requestEffect') world.keep(world.effects, value.effectId)
  if (id === 'pollTasks') value.items.forEach((t) => world.keep(world.tasks, t.task))
  if (id === 'getRun') world.keep(world.traces, value.correlationId)
  if (id === 'listEvents') value.items.forEach((e) => world.keep(world.events, e.eventId))
  if (typeof value.next === 'string') world.pages.set(id, { args: req.args, query: req.query, cursor: value.next, last: req.last })
  else world.pages.delete(id)
}

// Positions have no gaps: what comes after N begins with N + 1, and each is one more than the last. What is wrong, or null.
function gap(req, answer) {
  const name = { listRunEvents: 'runSeq', listEvents: 'sequenceNumber' }[req.op.id]
  if (!name || answer.status !== 200) return null
  const type = (answer.headers['content-type'] ?? '').split(';')[0]
  const items = (type === 'application/json' ? jsonOf(answer).items : itemsOf(type, answer.body.toString(), answer.cut)).filter((item) => item.eventId)
  const cursor = req.query.some(([n]) => n === 'cursor')
  let last = cursor ? req.pageLast : Number(req.query.find(([n]) => n === 'after')?.[1] ?? 0)
  for (const item of items) {
    if (item[name] !== last + 1) return `${name} ${item[name]} after ${last}`
    last = item[name]
  }
  req.last = last
  return null
}

async function askValid(world, connection, req) {
  const raw = render(options.url, options.key, req)
  const answer = await connection.ask(raw, { streamMs: req.streamMs })
  const label = `valid ${req.op.id}`
  count(req.op.id, answer.status ?? 'cut')
  if (!judge(world, req.op.method, target(req), raw, answer, label)) return null
  const plausible = isGood(answer) || PLAUSIBLE.has(answer.status) || (req.loose && answer.status === 400) || PLAUSIBLE.has(jsonOf(answer)?.code)
  if (!plausible) {
    fail(world, `${label}: refused with ${answer.status}`, raw, answer)
    return null
  }
  if (req.lines && answer.status === 200 && linesOf(answer).length < req.lines.length) {
    fail(world, `${label}: ${req.lines.length} lines, ${linesOf(answer).length} answers`, raw, answer)
    return null
  }
  const hole = gap(req, answer)
  if (hole) {
    fail(world, `${label}: ${hole}`, raw, answer)
    return null
  }
  passed++
  learn(world, req, answer)
  if ([429, 503].includes(answer.status)) await new Promise((resolve) => setTimeout(resolve, 200))
  return { raw, answer }
}

// Whether anything came of it: of a poll without tasks, and of lines that were all refused, nothing is remembered.
function remembered(req, answer) {
  if (req.op.id === 'pollTasks') return jsonOf(answer).items.length > 0
  if (req.op.id === 'reportTasks') return linesOf(answer).some((l) => l.ok || l.items?.length > 0)
  return !req.lines || linesOf(answer).some((l) => l.eventId)
}

// A request that was done, sent again with its key: the same answer. Another one with that key: refused.
async function askAgain(world, connection, req, first) {
  const again = await connection.ask(first.raw)
  const label = `repeated ${req.op.id}`
  count(`${req.op.id} again`, again.status ?? 'cut')
  if (!judge(world, req.op.method, target(req), first.raw, again, label)) return
  if ([429, 503].includes(again.status)) return void skipped++
  // Without the header it was not remembered; then nothing must have come of it, and the answer is the same.
  if (req.op.id === 'heartbeatTask' && again.status === 409) return void passed++ // the lease ran out meanwhile, and that is said
  const same = again.headers['idempotent-replayed'] === 'true' || again.body.equals(first.answer.body)
  if (!isGood(again) || !same) return fail(world, `${label}: ${again.status}, Idempotent-Replayed: ${again.headers['idempotent-replayed']}`, first.raw, again)
  // Appended events answer for themselves: the second time as duplicates.
  if (!req.op.id.startsWith('append') && again.status !== first.answer.status) return fail(world, `${label}: ${again.status} after ${first.answer.status}`, first.raw, again)
  passed++
  if (!req.value || !['startRun', 'signalRun', 'cancelRun', 'pauseRun'].includes(req.op.id) || req.value.reason === 'another request') return
  const other = { ...req, value: { ...req.value, reason: 'another request' } }
  const raw = render(options.url, options.key, other)
  const answer = await connection.ask(raw)
  if (!judge(world, req.op.method, target(req), raw, answer, label)) return
  if (answer.status !== 422 || jsonOf(answer).code !== 'IDEMPOTENCY_KEY_REUSED') fail(world, `${label}, with another body: ${answer.status}`, raw, answer)
  else passed++
}

async function askBroken(world, connection, req) {
  req.world = world
  req.headers = req.headers.filter(([n]) => n !== 'Idempotency-Key') // a refused request is not to use one up
  const label = breakOne(req, world)
  if (label === null) return void skipped++
  const raw = render(options.url, options.key, req)
  const answer = await connection.ask(raw, { streamMs: req.streamMs ?? 500 })
  const what = `broken ${req.op.id} (${label})`
  count(`${req.op.id} broken`, answer.status ?? 'cut')
  if (!judge(world, req.op.method, target(req), raw, answer, what)) return
  if (req.badLine !== undefined && answer.status === 200) {
    const line = linesOf(answer)[req.badLine]
    if (!line?.error) return fail(world, `${what}: the line was accepted`, raw, answer)
    const number = req.badLine + (req.blank ? 2 : 1)
    if (line.line !== number) return fail(world, `${what}: line ${number} is called ${line.line}`, raw, answer)
  } else if (isGood(answer)) {
    return fail(world, `${what}: accepted with ${answer.status}`, raw, answer)
  }
  passed++
}

async function askHostile(world, connection) {
  const bad = hostile(world)
  const raw = requestBytes(options.url, options.key, bad)
  const answer = await connection.ask(raw, { head: bad.method === 'HEAD', streamMs: 300 })
  count(`hostile: ${bad.label}`, answer.status ?? 'cut')
  if (judge(world, bad.method, bad.target, raw, answer, `hostile (${bad.label})`)) passed++
}

// Workers share nothing but the server, so that each makes the same requests again from the same seed.
async function worker(i, me, total) {
  const random = new Random(seed * 1000 + i)
  const every = me.tenantId === '*'
  const world = new World(api, random, { tenant: every ? `fuzz-${i}` : me.tenantId, every, name: `f${seed}-${i}`, queue: `fuzz-${i}`, keyed: options.key !== '' })
  const connection = new Connection(options.url)
  const op = (id) => api.operations.find((o) => o.id === id)
  const mine = (o) => o.op['x-cairn-roles'].some((role) => me.roles.includes(role)) && (every || o.op['x-cairn-tenant'] !== '*')
  const weighed = api.operations.filter(mine).flatMap((o) => Array(Math.ceil(50 * (WEIGHT[o.id] ?? 1))).fill(o))
  world.done = 0
  for (const id of ['putPlan', 'startRun', 'appendRunEvents', 'createKey'].filter((name) => mine(op(name)))) await askValid(world, connection, world.request(op(id)))
  while (world.done < total) {
    world.done++
    const roll = random.next()
    if (roll < 0.15) {
      await askHostile(world, connection)
      continue
    }
    const req = world.request(random.pick(weighed))
    if (roll < 0.55) {
      await askBroken(world, connection, req)
      continue
    }
    const done = await askValid(world, connection, req)
    const keyed = req.headers.some(([n]) => n === 'Idempotency-Key')
    const took = done && done.answer.status < 300 && remembered(req, done.answer)
    if (keyed && took) await askAgain(world, connection, req, done)
  }
  connection.close()
}

async function main() {
  const client = new Client(options.url, options.key)
  const me = await client.send('GET', '/v1/me')
  client.close()
  if (me.status !== 200) {
    console.error(`GET /v1/me: ${me.status} ${me.body}`)
    process.exit(2)
  }
  console.log(`seed ${seed}: ${options.requests} requests as ${me.json.name} of ${me.json.tenantId}`)
  await Promise.all(Array.from({ length: Number(options.connections) }, (_, i) => worker(i, me.json, Math.ceil(Number(options.requests) / Number(options.connections)))))
  finish()
}

await main()
