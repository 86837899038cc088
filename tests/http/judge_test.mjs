// judge_test.mjs: do openapi.mjs and lint.mjs see what is wrong? Each case is a mistake that they must find, or a good answer that they must not mind.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { load, readDocument } from './openapi.mjs'

const api = load()
let passed = 0
let failed = 0
function expect(holds, what) {
  if (holds) return void passed++
  failed++
  console.log(`FAILED ${what}`)
}

const common = { 'x-request-id': 'abc', 'x-content-type-options': 'nosniff', 'cache-control': 'no-store' }
const json = { ...common, 'content-type': 'application/json' }
const problemType = { ...common, 'content-type': 'application/problem+json' }
const ndjson = { ...common, 'content-type': 'application/x-ndjson' }
const sse = { ...common, 'content-type': 'text/event-stream' }
const problem = (status, code, more = {}) => ({ type: `urn:cairn:problem:${code}`, title: 'x', status, detail: 'd', code, retryable: false, requestId: 'abc', ...more })
const result = { eventId: '5e643858-4b04-4522-a308-15e931f2b775', runSeq: 8, persistedAt: '2026-11-16T03:29:37.523156Z', duplicate: false }
const run = readDocument().components.schemas.Run.examples[0]
const record = { eventId: '247e0dc1-c098-4f7e-a736-8d527bd94bad', eventType: 'RunQueued', emittedAt: '2026-02-16T08:00:00.250Z', runId: 'r', tenantId: 'acme', projectId: 'p', environmentId: 'e', planId: 'orders', planVersion: '7', engineAttemptId: 1, logicalAttemptId: 1, idempotencyKey: '0'.repeat(64), runSeq: 1, persistedAt: '2026-11-16T03:29:37.523156Z' }
const event = `id: 1\nevent: RunQueued\ndata: ${JSON.stringify(record)}\n\n`

// method, path, status, headers, body, what must be found ('' for nothing)
const answers = [
  ['GET', '/livez', 200, json, { status: 'ok' }, ''],
  ['GET', '/livez', 200, json, { status: 'ok', more: 1 }, 'additional properties'],
  ['GET', '/livez', 200, { ...json, 'x-request-id': undefined }, { status: 'ok' }, 'X-Request-Id is missing'],
  ['GET', '/livez', 200, { ...json, 'cache-control': 'public' }, { status: 'ok' }, 'Cache-Control'],
  ['GET', '/livez', 200, { ...json, 'content-type': 'text/html' }, { status: 'ok' }, 'content type'],
  ['GET', '/livez', 200, json, '{"status":', 'not JSON'],
  ['GET', '/livez', 200, json, Buffer.from([0x22, 0xff, 0x22]), 'not UTF-8'],
  ['GET', '/livez', 201, json, { status: 'ok' }, '201 is not documented'],
  ['GET', '/nothing', 200, json, {}, 'unknown route'],
  ['GET', '/nothing', 404, problemType, problem(404, 'ROUTE_NOT_FOUND'), ''],
  ['HEAD', '/livez', 405, { ...problemType, allow: 'GET' }, '', ''],
  ['POST', '/livez', 405, { ...problemType, allow: 'GET' }, problem(405, 'METHOD_NOT_ALLOWED'), ''],
  ['POST', '/livez', 405, problemType, problem(405, 'METHOD_NOT_ALLOWED'), 'Allow is missing'],
  ['GET', '/v1/runs', 400, problemType, problem(400, 'PARAMETER_INVALID', { errors: [{ pointer: '?limit', code: 'PARAMETER_INVALID', detail: 'd' }] }), ''],
  ['GET', '/v1/runs', 400, problemType, problem(404, 'PARAMETER_INVALID'), 'the problem says 404'],
  ['GET', '/v1/runs', 400, problemType, problem(400, 'PARAMETER_INVALID', { requestId: 'other' }), 'requestId'],
  ['GET', '/v1/runs', 400, problemType, problem(400, 'PARAMETER_INVALID', { errors: [] }), 'fewer than 1'],
  ['GET', '/v1/runs', 401, problemType, problem(401, 'UNAUTHENTICATED'), 'WWW-Authenticate is missing'],
  ['GET', '/v1/runs', 429, problemType, problem(429, 'RATE_LIMITED', { retryable: true }), 'Retry-After is missing'],
  ['GET', '/v1/runs', 503, { ...problemType, 'retry-after': '1' }, problem(503, 'TRY_AGAIN', { retryable: true }), ''],
  ['GET', '/v1/runs', 400, { 'content-type': 'application/problem+json' }, problem(400, 'HTTP_BAD_REQUEST', { requestId: undefined }), ''],
  ['GET', '/v1/runs', 500, { 'content-type': 'application/problem+json' }, problem(500, 'HTTP_BAD_REQUEST'), '500 is not documented'],
  ['GET', '/v1/runs?limit=1', 200, json, { items: [run], next: 'abc' }, ''],
  ['GET', '/v1/runs?limit=1', 200, json, { items: [run] }, "required property 'next'"],
  ['GET', '/v1/runs?limit=1', 200, json, { items: [{ ...run, cursor: 4 }], next: null }, 'additional properties'],
  ['GET', '/v1/runs?limit=1', 200, json, { items: [{ ...run, startedAt: '2026-11-16T03:29:33Z' }], next: null }, '/items/0/startedAt'],
  ['GET', '/v1/runs?limit=1', 200, json, { items: [{ ...run, runSeq: 2 ** 53 }], next: null }, '/items/0/runSeq'],
  ['GET', '/v1/runs/a%2Fb', 200, { ...json, etag: '"4"' }, run, ''],
  ['GET', '/v1/runs/a%2Fb', 200, json, run, 'ETag is missing'],
  ['GET', '/v1/runs/a%2Fb', 304, { ...common, etag: '"4"' }, '', ''],
  ['GET', '/v1/runs/a%2Fb', 304, { ...common, etag: '"4"' }, 'x', 'has no body'],
  ['POST', '/v1/events', 200, ndjson, `${JSON.stringify(result)}\n{"line":2,"error":{"code":"A","where":"","message":"m"}}\n`, ''],
  ['POST', '/v1/events', 200, ndjson, `${JSON.stringify(result)}`, 'has no end'],
  ['POST', '/v1/events', 200, ndjson, `${JSON.stringify({ ...result, seq: 1 })}\n`, 'item 1'],
  ['POST', '/v1/events', 200, ndjson, '{}\n\n{}\n', 'an empty line'],
  ['GET', '/v1/runs/r/events', 200, sse, `retry: 2000\n\n${event}: still here\n\nevent: end\ndata: {"runId":"r","status":"COMPLETED"}\n\n`, ''],
  ['GET', '/v1/runs/r/events', 200, sse, event.replace('"runSeq":1', '"runSeq":0'), 'item 1'],
  ['GET', '/v1/runs/r/events', 200, sse, `${event}nonsense\n\n`, 'not a line of an event stream'],
  ['GET', '/v1/runs/r/events', 200, ndjson, `${JSON.stringify(record)}\n\n\n${JSON.stringify(record)}\n`, ''],
  ['GET', '/v1/runs/r/events', 200, ndjson, `${JSON.stringify(record)}\n\nx\n`, 'not JSON'],
  ['GET', '/v1/runs/r/events', 200, json, { items: [record], next: null }, ''],
  ['POST', '/v1/plans/validate', 200, json, { valid: false, errors: [], report: null }, ''],
  ['GET', '/v1/plans/validate', 200, json, {}, '200 is not documented'] // the fixed path wins over {sha256}
]

for (const [method, path, status, headers, body, want] of answers) {
  const bytes = Buffer.isBuffer(body) ? body : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body))
  const wrong = api.check(method, path, status, headers, bytes)
  const good = want === '' ? wrong.length === 0 : wrong.some((w) => w.includes(want))
  expect(good, `${method} ${path} ${status} ${bytes.toString().slice(0, 60)}: wanted "${want}", got ${JSON.stringify(wrong)}`)
}

// ---- the linter ----

const mistakes = [
  ['operationId is missing', (d) => { delete d.paths['/v1/runs'].get.operationId }],
  ['is used twice', (d) => { d.paths['/v1/runs'].get.operationId = 'getMe' }],
  ['no answer 429', (d) => { delete d.paths['/v1/runs'].get.responses[429] }],
  ['nobody uses it', (d) => { d.components.schemas.Unused = { type: 'string' } }],
  ['leads nowhere', (d) => { d.components.schemas.Run.properties.runId = { $ref: '#/components/schemas/Nope' } }],
  ['example 1', (d) => { d.components.schemas.Run.examples[0].status = 'DONE' }],
  ['the path has {runId}', (d) => { d.paths['/v1/runs/{runId}'].get.parameters.shift() }],
  ['without maximum', (d) => { delete d.components.schemas.Run.properties.runSeq.maximum }],
  ['not valid OpenAPI', (d) => { d.paths['/v1/runs'].get.bogus = 1 }],
  ['x-cairn-roles', (d) => { d.paths['/v1/runs'].get['x-cairn-roles'] = ['boss'] }],
  ['whether others may be there', (d) => { delete d.components.schemas.Run.additionalProperties }],
  ['no answer of 200 to 299', (d) => { delete d.paths['/v1/me'].get.responses[200] }]
]
const folder = mkdtempSync(join(tmpdir(), 'judge-'))
const file = join(folder, 'openapi.json')
const lint = join(dirname(fileURLToPath(import.meta.url)), 'lint.mjs')
for (const [want, spoil] of mistakes) {
  const doc = readDocument()
  spoil(doc)
  writeFileSync(file, JSON.stringify(doc))
  let said = 'nothing'
  try {
    execFileSync(process.execPath, [lint], { env: { ...process.env, CAIRN_OPENAPI: file }, stdio: 'pipe' })
  } catch (error) {
    said = error.stdout.toString()
  }
  expect(said.includes(want), `lint: wanted "${want}", got ${said.slice(0, 300)}`)
}
rmSync(folder, { recursive: true, force: true })
console.log(`${passed} passed, ${failed} failed, 0 skipped`)
process.exit(failed ? 1 : 0)
