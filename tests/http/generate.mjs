// generate.mjs: valid requests, made from contracts/openapi.json and from what earlier answers have shown.
//
// A World is what one worker of the fuzzer knows: its tenant, the runs it has opened, plans, keys, cursors. Everything comes from its own
// random numbers, so that a seed makes the same requests again as long as the server gives the same answers.
import { createHash } from 'node:crypto'
import { requestBytes } from './client.mjs'

export class Random {
  constructor(seed) {
    this.state = (seed ^ 0x9e3779b9) >>> 0
    for (let i = 0; i < 8; i++) this.next()
  }

  next() { // mulberry32
    this.state = (this.state + 0x6d2b79f5) >>> 0
    let t = this.state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }

  int(min, max) { return min + Math.floor(this.next() * (max - min + 1)) }
  chance(p) { return this.next() < p }
  pick(list) { return list[this.int(0, list.length - 1)] }
  hex(n) { return Array.from({ length: n }, () => this.int(0, 15).toString(16)).join('') }
  word(min = 1, max = 12) { return Array.from({ length: this.int(min, max) }, () => this.pick('abcdefghijklmnopqrstuvwxyz0123456789-_.')).join('') }
  uuid() { return `${this.hex(8)}-${this.hex(4)}-4${this.hex(3)}-${this.pick('89ab')}${this.hex(3)}-${this.hex(12)}` }
  // Ids may be any text: blanks, letters of other scripts, what must be escaped in paths and JSON.
  id() { return this.chance(0.8) ? this.word() : this.pick(['a b', 'żółw', 'x/y', 'q?a=1&b', '100%', '"quoted"', 'back\\slash', '..', '.', '漢字', '😀', "it's", 'a+b', '#', '~tilde']) + this.word(1, 4) }
  time() { return new Date(Date.UTC(2026, this.int(0, 11), this.int(1, 28), this.int(0, 23), this.int(0, 59), this.int(0, 59))).toISOString().replace('.000Z', this.pick(['Z', '.5Z', '.123456Z', '.123456789Z'])) }
  json(depth = 2) {
    const kind = this.int(0, depth > 0 ? 6 : 4)
    if (kind === 0) return null
    if (kind === 1) return this.chance(0.5)
    if (kind === 2) return this.pick([0, -1, 1.5, 42, 9007199254740991, 1e21])
    if (kind <= 4) return this.id()
    const n = this.int(0, 3)
    if (kind === 5) return Array.from({ length: n }, () => this.json(depth - 1))
    return Object.fromEntries(Array.from({ length: n }, (_, i) => [`${this.word(1, 5)}${i}`, this.json(depth - 1)]))
  }
}

export function eventKey(e) {
  const text = [e.runId, e.stepId ?? 'RUN', e.logicalAttemptId, e.eventType, e.planId, e.planVersion].join('|')
  return createHash('sha256').update(text).digest('hex')
}

const KEEP = 200 // ids of a kind that are remembered

export class World {
  constructor(api, random, { tenant, every, name, queue, keyed }) {
    this.api = api
    this.random = random
    this.tenant = tenant
    this.every = every // a caller of all tenants: it must name one
    this.name = name
    this.queue = queue
    this.keyed = keyed // the server wants a key
    this.badKeys = 0
    this.runs = [] // whose events come from here
    this.started = [] // carried out by the engine
    this.plans = []
    this.keys = []
    this.events = []
    this.traces = []
    this.tasks = []
    this.links = []
    this.effects = []
    this.pages = new Map() // operation -> { query, cursor }
    this.seen = new Map() // operation -> { args, etag }
    this.count = 0
  }

  keep(list, item) {
    list.push(item)
    if (list.length > KEEP) list.shift()
  }

  known(list, otherwise) {
    return list.length > 0 && this.random.chance(0.9) ? this.random.pick(list) : otherwise()
  }

  runId() {
    const ids = [...this.runs.slice(-20).map((r) => r.runId), ...this.started.slice(-20)]
    return this.known(ids, () => this.random.id())
  }

  // ---- events ----

  newRun() {
    const r = this.random
    const run = { runId: `${this.name}-${this.count++}-${r.id()}`, projectId: r.id(), environmentId: r.pick(['default', 'prod', r.id()]), planId: r.pick(['orders', r.id()]), planVersion: r.pick(['1', '7']), status: 'NEW', steps: new Map(), pauses: 0, seen: new Set() }
    this.keep(this.runs, run)
    return run
  }

  // The next legal event of a run, and what it changes once it is accepted.
  nextEvent(run) {
    const r = this.random
    const open = [...run.steps].filter(([, s]) => s.state === 'RUNNING')
    const choices = []
    const add = (eventType, accepted, more = {}) => choices.push({ eventType, accepted, more })
    const to = (status) => () => { run.status = status }
    if (run.status === 'NEW') { add('RunQueued', to('PENDING')); add('RunStarted', to('RUNNING')) }
    if (run.status === 'PENDING') { add('RunStarted', to('RUNNING')); add('RunApproved', to('APPROVED')); add('RunCancelled', to('CANCELLED')) }
    if (run.status === 'APPROVED') add('RunStarted', to('RUNNING'))
    if (run.status === 'PAUSED') add('RunResumed', to('RUNNING'), { logicalAttemptId: run.pauses })
    if (run.status === 'RUNNING') {
      const step = `step-${run.steps.size}`
      for (let i = 0; i < 3; i++) add('StepStarted', () => run.steps.set(step, { state: 'RUNNING', attempt: 1 }), { stepId: step })
      for (const [id, s] of open) {
        add('StepCompleted', () => { s.state = 'SUCCESS' }, { stepId: id, logicalAttemptId: s.attempt, payload: { output: { n: r.int(0, 9) } } })
        add('StepFailed', () => { s.state = 'FAILED' }, { stepId: id, logicalAttemptId: s.attempt, payload: { code: 'EXIT_CODE', message: 'no' } })
      }
      if (r.chance(0.2)) add('RunPaused', () => { run.status = 'PAUSED'; run.pauses++ }, { logicalAttemptId: run.pauses + 1 })
      if (r.chance(0.2)) add(r.pick(['RunCompleted', 'RunFailed', 'RunCancelled']), to('COMPLETED'))
      const link = { provider: 'temporal', workflowId: run.runId.slice(0, 200), providerRunId: r.hex(8) }
      if (r.chance(0.1)) add('RunProviderLinked', () => this.keep(this.links, link), { payload: link, logicalAttemptId: run.seen.size + 1 })
    }
    add(`Thing${r.hex(6)}Noticed`, () => {}, { payload: r.chance(0.5) ? { any: r.json() } : undefined })
    return this.event(run, r.pick(run.status === 'NEW' ? choices.slice(0, 2) : choices))
  }

  event(run, { eventType, accepted, more }) {
    const e = { eventId: this.random.uuid(), eventType, emittedAt: this.random.time(), runId: run.runId, tenantId: this.tenant, projectId: run.projectId, environmentId: run.environmentId, planId: run.planId, planVersion: run.planVersion, engineAttemptId: 1, logicalAttemptId: 1, ...more }
    if (e.payload === undefined) delete e.payload
    e.idempotencyKey = eventKey(e)
    return { value: e, accepted: () => { accepted(); run.seen.add(e.eventId); this.keep(this.events, e.eventId) } }
  }

  openRun() {
    const open = this.runs.slice(-10).filter((r) => !['COMPLETED', 'CANCELLED'].includes(r.status))
    return open.length > 0 && this.random.chance(0.8) ? this.random.pick(open) : this.newRun()
  }

  // ---- values by schema ----

  value(schema, name) {
    const r = this.random
    const s = this.api.resolve(schema)
    const named = this.named(name)
    if (named !== undefined) return named
    if ('const' in s) return s.const
    if (s.enum) return r.pick(s.enum)
    if (s.anyOf || s.oneOf) return this.value(r.pick(s.anyOf ?? s.oneOf), name)
    const type = Array.isArray(s.type) ? s.type[0] : s.type
    if (type === 'integer') return r.pick([s.minimum, Math.min(s.maximum, s.minimum + r.int(0, 20)), Math.min(s.maximum, 1000)])
    if (type === 'boolean') return r.chance(0.5)
    if (type === 'null') return null
    if (type === 'array') return this.array(s)
    if (type === 'object') return s.properties ? this.object(s) : r.chance(0.5) ? {} : { [r.word()]: r.json() }
    if (type === 'string') return this.text(s)
    return r.json()
  }

  object(s) {
    const out = {}
    for (const [name, schema] of Object.entries(s.properties)) {
      if (s.required.includes(name) || this.random.chance(0.4)) out[name] = this.value(schema, name)
    }
    return out
  }

  array(s) {
    const n = this.random.int(s.minItems ?? 0, Math.min(s.maxItems ?? 3, 3))
    const out = Array.from({ length: n }, () => this.value(s.items))
    return s.uniqueItems ? [...new Set(out)] : out
  }

  text(s) {
    const r = this.random
    if (s.format === 'date-time') return r.time()
    if (s.format === 'uuid') return r.uuid()
    if (s.pattern === '^[0-9a-f]{64}$') return r.hex(64)
    if (s.pattern === '^[a-z0-9]{16}$') return r.hex(16)
    if (s.pattern?.includes('A-Za-z0-9_')) return r.hex(8)
    if (s.pattern === '^https?://.+') return `http://${r.hex(8)}.example`
    if (s.maxLength === 255 && r.chance(0.03)) return 'm'.repeat(255)
    return r.id()
  }

  // Names that mean the same everywhere.
  named(name) {
    const r = this.random
    switch (name) {
      case 'runId': return this.runId()
      case 'tenantId': return this.tenant
      case 'eventId': return this.known(this.events, () => r.uuid())
      case 'correlationId': return this.known(this.traces, () => r.uuid())
      case 'sha256': return this.known(this.plans.map((p) => p.sha256), () => r.hex(64))
      case 'keyId': return this.known(this.keys.map((k) => k.keyId), () => r.hex(16))
      case 'effectId': return this.known(this.effects, () => r.uuid())
      case 'task': return this.known(this.tasks, () => r.hex(40))
      case 'queue': case 'poll': return r.chance(0.8) ? this.queue : r.word()
      case 'stepId': return r.pick(['hold', 'work', 'ask', r.word()])
      case 'signal': return r.pick(['PAUSE', 'RESUME', 'CANCEL', 'APPROVE', 'REJECT', 'go', r.word()])
      case 'substatus': return r.pick(['DRAINING', 'RETRYING', 'WAITING_APPROVAL', 'RECOVERING', 'temporal/STALLED'])
      case 'waitMs': return r.int(0, 20)
      case 'planRef': return this.plans.length > 0 ? r.pick(this.plans) : undefined
      case 'expiresAt': return `2099-01-01T00:00:0${r.int(0, 9)}Z`
      case 'name': return r.word()
      default: return undefined
    }
  }

  // One of a few: a server carries out 64 different plans at a time.
  plan() {
    const r = this.random
    const kinds = [{ type: 'noop' }, { type: 'sleep', durationMs: 20 }, { stepId: 'hold', type: 'wait', signal: 'go' }, { stepId: 'ask', type: 'approval', message: 'go on?' }, { stepId: 'work', type: 'task', queue: this.queue, input: { n: 1, text: 'żółw' } }]
    const mask = r.pick([3, 4, 8, 16, 22, 31])
    const steps = kinds.filter((_, i) => mask & (1 << i)).map((s, i) => ({ stepId: `s${i}`, ...s }))
    return { schemaVersion: 'v1.3', metadata: { planId: this.queue, planVersion: String(mask) }, steps }
  }

  // ---- requests ----

  // { op, args, query, headers, type, value | lines | text, ...}: render() makes bytes of it.
  request(op) {
    const req = { op, args: {}, query: [], headers: [], loose: false, accepted: [] }
    for (const p of op.parameters) {
      if (p.in === 'path') req.args[p.name] = this.value(p.schema, p.name)
      if (p.in === 'query' && (p.required || this.random.chance(0.25))) this.addQuery(req, p)
      if (p.in === 'header') this.addHeader(req, p)
    }
    this.addPage(req)
    this.addBody(req)
    special[op.id]?.(req, this)
    this.addTenant(req)
    return req
  }

  addQuery(req, p) {
    if (p.name === 'cursor') return
    const value = this.value(p.schema, p.name)
    for (const v of Array.isArray(value) ? value : [value]) req.query.push([p.name, String(v)])
  }

  addHeader(req, p) {
    const r = this.random
    if (p.name === 'traceparent' && r.chance(0.3)) req.headers.push([p.name, `00-${r.hex(32)}-${r.hex(16)}-01`])
    if (p.name === 'Idempotency-Key' && r.chance(0.3)) req.headers.push([p.name, `${this.name}-${r.hex(12)}`])
    if (p.name === 'If-None-Match' && r.chance(0.3)) req.headers.push([p.name, r.pick(['"1"', '*', '"x", "y"', `"${r.hex(64)}"`])])
    if (p.name === 'Prefer' && r.chance(0.1)) req.headers.push([p.name, r.pick(['wait=1', 'wait=0', 'respond-async'])])
  }

  // The next page of a list that had one: with the same filters.
  addPage(req) {
    const page = this.pages.get(req.op.id)
    if (!page || !req.op.parameters.some((p) => p.name === 'cursor') || this.random.chance(0.5)) return
    req.args = page.args
    req.pageLast = page.last
    req.query = [...page.query.filter(([n]) => n !== 'cursor' && n !== 'after'), ['cursor', page.cursor]]
  }

  addTenant(req) {
    if (!this.every || req.query.some(([n]) => n === 'tenantId')) return
    if (req.op.parameters.some((p) => p.in === 'query' && p.name === 'tenantId')) req.query.push(['tenantId', this.tenant])
  }

  addBody(req) {
    const body = req.op.op.requestBody
    if (!body || (!body.required && this.random.chance(0.3))) return
    const [type, media] = Object.entries(body.content)[0]
    req.type = type
    if (media['x-cairn-item-schema']) req.lines = Array.from({ length: this.random.int(1, 4) }, () => this.value(media['x-cairn-item-schema']))
    else req.value = this.value(media.schema)
  }
}

// What schemas cannot say.
const special = {
  startRun(req, world) {
    if (world.plans.length === 0) req.loose = true
    delete req.value.plan // a reference or the plan: api_open.mjs has the other
    req.value.planRef ??= world.value({ $ref: '#/components/schemas/PlanRef' }, 'planRef')
    req.value.context = { ...req.value.context, runId: `${world.name}-run-${world.count++}${world.random.chance(0.3) ? world.random.id() : ''}`, targetAdapter: 'local' }
    if (world.every) req.value.context.tenantId = world.tenant
    delete req.value.parameters // the plans have none
  },
  appendRunEvents(req, world) {
    const run = world.openRun()
    req.args.runId = run.runId
    if (world.random.chance(0.6)) {
      const event = world.nextEvent(run)
      req.value = event.value
      req.accepted = [event.accepted]
    } else {
      fillLines(req, world, () => run)
    }
  },
  appendEvents(req, world) {
    fillLines(req, world, () => world.openRun())
  },
  putPlan(req, world) {
    req.value = world.plan()
    if (world.random.chance(0.2)) { req.type = 'application/jsonc'; req.text = `// a comment\n${JSON.stringify(req.value)}`; delete req.value }
  },
  validatePlan(req, world) {
    req.value = world.random.chance(0.5) ? world.plan() : { steps: world.random.json() }
  },
  pollTasks(req, world) {
    if (world.every) req.value.tenantId = world.tenant
    req.value.leaseMs = world.random.pick([100, 5000])
  },
  reportTasks(req, world) {
    for (const line of req.lines ?? []) if ('output' in line) delete line.error
    req.query = req.query.filter(([n]) => !['poll', 'worker', 'max', 'leaseMs'].includes(n))
    if (req.lines && !world.random.chance(0.5)) return
    req.query.push(['poll', world.queue], ['worker', 'w'], ['max', '3'])
  },
  heartbeatTask(req) { req.loose = true }, // a token that was made up may be malformed
  completeTask(req) { req.loose = true },
  failTask(req) { req.loose = true },
  requeueEffects(req, world) {
    if (req.value) req.value.tenantId = world.tenant
  },
  createKey(req, world) {
    req.value.tenantId = world.tenant
  },
  updateKey(req, world) {
    const key = world.keys.find((k) => k.keyId === req.args.keyId)
    req.headers.push(['If-Match', key?.etag ?? '"1"'])
  },
  resolveRun(req, world) {
    if (world.links.length === 0 || world.random.chance(0.3)) return
    req.query = Object.entries(world.random.pick(world.links))
  },
  getRun(req, world) { askAgainFor(req, world) },
  getPlan(req, world) { askAgainFor(req, world) },
  listRunEvents(req, world) { chooseStream(req, world) },
  listEvents(req, world) { chooseStream(req, world) },
  backupLedger(req, world) {
    req.loose = true // PostgreSQL has its own means
    req.value = { file: `${world.name}-${world.count++}.db` }
  }
}

function fillLines(req, world, runOf) {
  req.type = 'application/x-ndjson'
  delete req.value
  req.lines = []
  const n = world.random.int(1, 5)
  for (let i = 0; i < n; i++) {
    const event = world.nextEvent(runOf())
    req.lines.push(event.value)
    event.accepted() // the next line builds on it
  }
}

// What was seen before: 304, unless it has changed.
function askAgainFor(req, world) {
  const seen = world.seen.get(req.op.id)
  if (!seen || world.random.chance(0.6)) return
  req.args = seen.args
  req.headers = [['If-None-Match', seen.etag]]
}

// To a run that somebody carries out.
function chooseStarted(req, world) {
  if (world.started.length > 0 && world.random.chance(0.8)) req.args.runId = world.random.pick(world.started.slice(-10))
}
for (const id of ['signalRun', 'cancelRun', 'pauseRun', 'resumeRun', 'approveRun', 'rejectRun', 'retryStep']) special[id] = chooseStarted

function chooseStream(req, world) {
  const r = world.random
  if (req.query.some(([n]) => n === 'cursor')) return
  if (req.op.id === 'listRunEvents' && world.runs.length > 0 && r.chance(0.6)) { // somewhere in the middle of a run
    req.args.runId = r.pick(world.runs.slice(-10)).runId
    req.query = r.pick([[['limit', '2']], [['after', String(r.int(0, 4))]], [['after', '1'], ['limit', '1']]])
  }
  if (r.chance(0.5)) return
  req.headers.push(['Accept', r.pick(['application/x-ndjson', 'text/event-stream'])])
  req.query = req.query.filter(([n]) => n !== 'follow' && n !== 'limit')
  if (r.chance(0.2)) req.query = [...req.query.filter(([n]) => n !== 'after'), ['after', '1000000']]
  if (r.chance(0.95)) req.query.push(['follow', 'false'])
  else req.streamMs = 200
}

// ---- rendering ----

export function target(req) {
  if (req.target !== undefined) return req.target
  const path = req.op.path.replace(/\{([^}]+)\}/g, (_, name) => encodePart(req.args[name]))
  const query = req.query.map(([n, v]) => `${encodeURIComponent(n)}=${req.rawQuery === n ? v : encodeURIComponent(v)}`).join('&')
  return query ? `${path}?${query}` : path
}

// "." and ".." would be path segments to a proxy, so a client escapes them.
function encodePart(value) {
  const text = encodeURIComponent(value)
  return text === '.' || text === '..' ? text.replaceAll('.', '%2E') : text
}

export function bodyOf(req) {
  if (req.raw !== undefined) return req.raw
  if (req.text !== undefined) return req.text
  if (req.lines) return (req.blank ? '\n' : '') + req.lines.map((l) => (typeof l === 'string' ? l : JSON.stringify(l)) + '\n').join('')
  return req.value === undefined ? undefined : JSON.stringify(req.value)
}

export function render(url, key, req) {
  const body = bodyOf(req)
  const headers = [...req.headers]
  if (body !== undefined && req.type) headers.push(['Content-Type', req.type])
  return requestBytes(url, key, { method: req.op.method, target: target(req), headers, body })
}
