// harness.mjs: small named tests of a running server. Every answer that a judged client gets is also checked against contracts/openapi.json.
//
//     test('a run is started', async () => { same((await client.send('GET', '/v1/me')).status, 200) })
//     await finish()                                    // runs them all, one after the other; prints "N passed, N failed, N skipped"
import http from 'node:http'
import { randomUUID } from 'node:crypto'
import { Client } from './client.mjs'
import { eventKey } from './generate.mjs'
import { itemsOf, load } from './openapi.mjs'

export const api = load()
export const options = { url: '', key: '', log: '', pid: '', db: '', only: '' }
for (let i = 3; i < process.argv.length; i += 2) options[process.argv[i].replace(/^--/, '')] = process.argv[i + 1]

// ---- tests ----

const tests = []
let violations = [] // of the document, by answers to the test that runs now
let checks = 0 // that this test has made
export const test = (name, run) => tests.push({ name, run })

export class Failure extends Error {}
const written = (value) => JSON.stringify(value) ?? String(value)
export function check(holds, what) {
  checks++
  if (!holds) throw new Failure(what)
}
// Equal as JSON. What is told of long values begins a little before the first difference.
export function same(got, want, what = 'value') {
  const [a, b] = [written(got), written(want)]
  let at = 0
  while (at < a.length && a[at] === b[at]) at++
  const from = Math.max(0, at - 60)
  check(a === b, `${what}: got ${from ? '...' : ''}${a.slice(from, from + 600)}, want ${from ? '...' : ''}${b.slice(from, from + 600)}`)
}
export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
// Asks until it is true, for a minute at most; returns what made it true.
export async function until(what, ask) {
  const end = Date.now() + 60000 // only a failure takes so long; a sanitizer on a busy machine, half of it
  for (;;) {
    const value = await ask()
    if (value) return value
    check(Date.now() < end, `never true: ${what}`)
    await pause(20)
  }
}

export async function finish() {
  let passed = 0
  let failed = 0
  const chosen = tests.filter((t) => t.name.includes(options.only))
  if (chosen.length === 0) {
    console.log('FAIL no test was chosen')
    process.exit(1)
  }
  for (const { name, run } of chosen) {
    violations = []
    checks = 0
    let error
    try {
      await run()
      if (checks === 0) error = new Failure('it checks nothing')
    } catch (e) {
      error = e
    }
    if (!error && violations.length === 0) {
      passed++
      console.log(`ok ${name}`)
      continue
    }
    failed++
    console.log(`FAIL ${name}`)
    if (error) console.log(`    ${error instanceof Failure ? `${error.message}\n    ${error.stack.split('\n').find((l) => /api.*\.mjs/.test(l) && !/harness/.test(l))?.trim()}` : error.stack}`)
    violations.forEach((line) => console.log(`    against the document: ${line}`))
  }
  console.log(`${passed} passed, ${failed} failed, 0 skipped`)
  process.exit(failed ? 1 : 0)
}

// ---- clients ----

function judge(method, target, status, headers, body, cut = false) {
  const wrong = api.check(method, target, status, headers, body, { cut })
  if (wrong.length > 0) violations.push(`${method} ${target} ${status}: ${wrong.join('; ')}`)
}

// A client whose answers are judged.
export class Judged extends Client {
  constructor(key, url = options.url) {
    super(url, key)
  }

  async send(method, target, value, headers) {
    const answer = await super.send(method, target, value, headers)
    judge(method, target, answer.status, answer.headers, answer.body)
    return answer
  }

  get(target, headers) { return this.send('GET', target, undefined, headers) }
  post(target, value, headers) { return this.send('POST', target, value, headers) }
  // The lines of an answer to lines.
  async lines(target, text, headers = []) {
    const answer = await this.send('POST', target, text, [['Content-Type', 'application/x-ndjson'], ...headers])
    return { ...answer, lines: answer.status === 200 ? itemsOf('application/x-ndjson', answer.body.toString()) : [] }
  }

  // It must be answered so; returns the JSON.
  async must(status, method, target, value, headers) {
    const answer = await this.send(method, target, value, headers)
    check(answer.status === status, `${method} ${target}: ${answer.status} instead of ${status}: ${answer.body.toString().slice(0, 400)}`)
    return answer.json
  }

  // It must be refused so: the status, the code, and where, if that is given.
  async refused(status, code, method, target, value, headers, where) {
    const answer = await this.send(method, target, value, headers)
    check(answer.status === status && answer.json?.code === code, `${method} ${target}: ${answer.status} ${answer.body.toString().slice(0, 400)} instead of ${status} ${code}`)
    if (where !== undefined) same(answer.json.errors?.[0].pointer, where, 'pointer')
    return answer
  }

  // All pages of a list. `between` is called after each.
  async pages(target, limit, between = () => {}) {
    const items = []
    const mark = target.includes('?') ? '&' : '?'
    let cursor = null
    for (let n = 0; n < 1000; n++) {
      const page = await this.must(200, 'GET', `${target}${mark}limit=${limit}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`)
      check(page.items.length <= limit, `${page.items.length} items on a page of ${limit}`)
      items.push(...page.items)
      cursor = page.next
      if (cursor === null) return items
      await between(n)
    }
    throw new Failure('the pages do not end')
  }
}

// A live stream. `records` grows: { id, event, data } of SSE, or the values of NDJSON. Judged when it ends or is left.
export class Stream {
  constructor(target, { key = options.key, accept = 'text/event-stream', headers = {}, url = options.url } = {}) {
    this.target = target
    this.text = ''
    this.ended = false
    this.accept = accept
    this.done = new Promise((resolve) => {
      const auth = key ? { Authorization: `Bearer ${key}` } : {}
      this.request = http.request(url + target, { headers: { Accept: accept, ...auth, ...headers }, agent: false }, (answer) => {
        this.status = answer.statusCode
        this.headers = answer.headers
        answer.setEncoding('utf8')
        answer.on('data', (part) => { this.text += part })
        const over = () => { this.ended = true; resolve() }
        answer.on('end', () => { this.complete = answer.complete; over() })
        answer.on('error', over)
        answer.on('close', over)
      })
      this.request.on('error', (error) => { this.error = error; this.ended = true; resolve() })
      this.request.end()
    })
  }

  get records() {
    if (this.accept === 'application/x-ndjson') return this.text.split('\n').slice(0, -1).filter(Boolean).map((line) => JSON.parse(line))
    return this.text.split('\n\n').slice(0, -1).filter((b) => b.includes('data:')).map((block) => {
      const field = (name) => block.split('\n').find((l) => l.startsWith(`${name}: `))?.slice(name.length + 2)
      return { id: field('id'), event: field('event'), data: JSON.parse(field('data')) }
    })
  }

  async has(n) {
    await until(`${n} records of ${this.target}; it has ${this.records.length}`, () => this.records.length >= n || (this.ended && this.fail()))
    return this.records
  }

  fail() {
    throw new Failure(`${this.target}: ended with ${this.status} ${this.error?.message ?? ''} ${this.text.slice(0, 300)}`)
  }

  async end() { // it must end by itself
    let timer
    const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Failure(`${this.target}: does not end: ${this.text.slice(-300)}`)), 15000) })
    await Promise.race([this.done, late])
    clearTimeout(timer)
    if (this.error) this.fail()
    check(this.complete, `${this.target}: cut off`)
    judge('GET', this.target, this.status, this.headers, Buffer.from(this.text))
    return this.records
  }

  leave() {
    if (!this.ended && this.status) judge('GET', this.target, this.status, this.headers, Buffer.from(this.text), true)
    this.request.destroy()
  }
}

// ---- things to send ----

export const id = (prefix) => `${prefix}-${randomUUID().slice(0, 8)}`
export function event(tenantId, runId, eventType, more = {}) {
  const e = { eventId: randomUUID(), eventType, emittedAt: '2026-02-16T08:00:00Z', runId, tenantId, projectId: 'warehouse', environmentId: 'test', planId: 'orders', planVersion: '1', engineAttemptId: 1, logicalAttemptId: 1, ...more }
  return { ...e, idempotencyKey: eventKey(e) }
}
export const ndjson = (events) => events.map((e) => JSON.stringify(e) + '\n').join('')
export function plan(name, steps, more = {}) {
  return { schemaVersion: 'v1.3', metadata: { planId: name, planVersion: '1' }, ...more, steps }
}
export const SIX = ['tenantId', 'projectId', 'environmentId', 'runId', 'engineAttemptId', 'logicalAttemptId']
export const sixOf = (value) => SIX.map((name) => value[name])
