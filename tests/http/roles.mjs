// roles.mjs: who may do what. node roles.mjs --url http://127.0.0.1:PORT --admin-key KEY [--verbose true]
//
// KEY belongs to an admin of all tenants. For two tenants it makes data and one key for each role, and asks every operation of
// contracts/openapi.json with each of them: it must be allowed exactly when x-cairn-roles says so (403 FORBIDDEN otherwise), without a key it
// must be 401, and with ids of the other tenant it must be 404 and change nothing.
import { createHash, randomUUID } from 'node:crypto'
import { Client } from './client.mjs'
import { eventKey } from './generate.mjs'
import { load } from './openapi.mjs'

const options = { url: '', 'admin-key': '', verbose: '' }
for (let i = 2; i < process.argv.length; i += 2) options[process.argv[i].replace(/^--/, '')] = process.argv[i + 1]
if (!options.url || !options['admin-key']) {
  console.error('usage: node roles.mjs --url URL --admin-key KEY')
  process.exit(2)
}

const ROLES = ['viewer', 'operator', 'producer', 'worker', 'admin']
const api = load()
const tag = randomUUID().slice(0, 8)
let passed = 0
let failed = 0
let skipped = 0

function expect(holds, what, answer) {
  if (holds) {
    passed++
    if (options.verbose) console.log(`ok: ${what}`)
    return
  }
  failed++
  console.log(`FAILED ${what}${answer ? `: got ${answer.status} ${answer.body.toString().slice(0, 300)}` : ''}`)
}

// Every answer is also one that the document allows.
async function send(client, method, target, value, headers) {
  const answer = await client.send(method, target, value, headers)
  const wrong = api.check(method, target, answer.status, answer.headers, answer.body)
  if (wrong.length > 0) expect(false, `${method} ${target}: ${wrong.join('; ')}`, answer)
  return answer
}

async function must(client, status, method, target, value, headers) {
  const answer = await send(client, method, target, value, headers)
  if (answer.status !== status) throw new Error(`${method} ${target}: ${answer.status} instead of ${status}: ${answer.body}`)
  return answer.json
}

// ---- two tenants ----

function event(tenant, runId, eventType, more = {}) {
  const e = { eventId: randomUUID(), eventType, emittedAt: '2026-02-16T08:00:00Z', runId, tenantId: tenant, projectId: 'p', environmentId: 'e', planId: 'orders', planVersion: '1', engineAttemptId: 1, logicalAttemptId: 1, ...more }
  return { ...e, idempotencyKey: eventKey(e) }
}

async function makeTenant(root, name) {
  const t = { name, clients: {}, keyIds: {}, n: 0 }
  for (const role of ROLES) {
    const key = await must(root, 201, 'POST', '/v1/keys', { name: `${name} ${role}`, roles: [role], tenantId: name })
    t.clients[role] = new Client(options.url, key.key)
    t.keyIds[role] = key.keyId
  }
  const { producer, operator, viewer, admin } = t.clients
  t.appended = `${name}-appended`
  const link = { provider: 'temporal', workflowId: `${name}-flow`, providerRunId: 'r1' }
  for (const e of [event(name, t.appended, 'RunStarted'), event(name, t.appended, 'RunProviderLinked', { payload: link })]) {
    t.eventId = e.eventId
    await must(producer, 201, 'POST', `/v1/runs/${t.appended}/events`, e)
  }
  t.link = link
  t.correlationId = (await must(viewer, 200, 'GET', `/v1/runs/${t.appended}`)).correlationId
  t.plan = JSON.stringify({ schemaVersion: 'v1.3', metadata: { planId: `plan-${name}`, planVersion: '1' }, steps: [{ stepId: 'hold', type: 'wait', signal: 'go' }, { stepId: 'work', type: 'task', queue: 'roles' }] })
  t.planRef = await must(operator, 201, 'POST', '/v1/plans', t.plan)
  t.held = `${name}-held`
  await must(operator, 201, 'POST', '/v1/runs', { planRef: t.planRef, context: { runId: t.held } })
  t.effectId = (await must(producer, 201, 'POST', `/v1/runs/${t.appended}/effects`, { effectType: 'X', payload: {}, maxRetries: 0 })).effectId
  // Nobody delivers an X: wait until the outbox has given it up, and so touches this tenant no more.
  for (let i = 0; (await must(viewer, 200, 'GET', `/v1/effects/${t.effectId}`)).status !== 'DEAD_LETTER'; i++) {
    if (i === 600) throw new Error(`effect ${t.effectId} does not end`)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  t.task = (await must(t.clients.worker, 200, 'POST', '/v1/tasks/poll', { queue: 'roles', worker: 'w', leaseMs: 600000, waitMs: 5000 })).items[0].task
  const spare = await must(admin, 201, 'POST', '/v1/keys', { name: 'spare', roles: ['viewer'] })
  t.spare = spare.keyId
  return t
}

// ---- one request for each operation ----

// A request of `me` about things of `of`, which is the same tenant or the other one. `foreign`: what such a request about the
// other tenant's things answers; 404 unless it is said otherwise, null: there is nothing of a tenant in it.
function requestFor(op, me, of) {
  const run = of.appended
  const fresh = `${of.name}-${++of.n}-${tag}`
  const q = (more = {}) => '?' + new URLSearchParams({ tenantId: of.name, ...more })
  const to = (target, value, headers, foreign = 404) => ({ target, value, headers, foreign })
  const path = op.path.replace('{runId}', run).replace('{eventId}', of.eventId).replace('{correlationId}', of.correlationId).replace('{sha256}', of.planRef.sha256).replace('{keyId}', of.spare).replace('{effectId}', of.effectId)
  const ref = { provider: 'local', workflowId: run, runId: run }
  const ndjson = [['Content-Type', 'application/x-ndjson']]
  const open = to(path, undefined, undefined, null)
  const line = (e) => JSON.stringify(e) + '\n'
  const known = {
    getLive: open, getReady: open, getOpenApi: open, getMetrics: open, getMe: open, getStats: open, getStatus: open,
    listRuns: to(path + q()), listEvents: to(path + q()), listAlerts: to(path + q()), listAudit: to(path + q()), listKeys: to(path + q()),
    getTrace: to(path + (me === of ? '' : q())), resolveRun: to(path + q(of.link)),
    startRun: to(path, { planRef: of.planRef, context: { tenantId: of.name, runId: fresh } }),
    appendRunEvents: to(`/v1/runs/${fresh}/events`, event(of.name, fresh, 'RunStarted')),
    appendEvents: to(path + (me === of ? '' : '?atomic=true'), line(event(of.name, fresh, 'RunStarted')), ndjson),
    requestEffect: to(path, { effectType: 'X', payload: { n: fresh } }), listEffects: to(path + q()), requeueEffects: to(path, { tenantId: of.name }),
    signalRun: to(path, { signal: 'go' }), retryStep: to(path, { stepId: 'hold' }),
    getRunRef: to(path, { engineRunRef: ref }), cancelRunRef: to(path, { engineRunRef: ref }), signalRunRef: to(path, { engineRunRef: ref, signal: 'go' }),
    pollTasks: to(path, { queue: 'q', worker: 'w', tenantId: of.name }),
    heartbeatTask: to(path, { task: of.task }), completeTask: to(path, { task: of.task }), failTask: to(path, { task: of.task, code: 'NO' }),
    reportTasks: to(path, `{"task":"${of.task}"}\n`, ndjson),
    putPlan: to(path + (me === of ? '' : q()), of.plan.replace('"1"', `"${fresh}"`)), validatePlan: to(path, of.plan, undefined, null),
    createKey: to(path, { name: 'new', roles: ['viewer'], tenantId: of.name }),
    updateKey: to(path, { name: 'changed' }, [['If-Match', '"999"']]),
    verifyLedger: to(path, {}, undefined, null), backupLedger: to(path, { file: `roles-${tag}.db` }, undefined, null),
    archiveLedger: to(path, { before: '2020-01-01T00:00:00Z' }, undefined, null)
  }
  return known[op.id] ?? to(path)
}

// What a caller can change, as far as the other tenant would see it. Refused requests may be audited, so the trail is not in it.
async function fingerprint(t) {
  const { viewer, admin } = t.clients
  const parts = []
  for (const [client, target] of [[viewer, '/v1/events?limit=1000'], [viewer, '/v1/runs?limit=1000'], [viewer, '/v1/effects?limit=1000'], [admin, '/v1/keys?limit=1000']]) {
    const page = await must(client, 200, 'GET', target)
    parts.push(page.items.map((item) => ({ ...item, lastUsedAt: null })))
  }
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex')
}

const isForbidden = (answer) => answer.status === 403 && answer.json?.code === 'FORBIDDEN'

async function ownTenant(op, me) {
  for (const role of ROLES) {
    const { target, value, headers } = requestFor(op, me, me)
    const answer = await send(me.clients[role], op.method, target, value, headers)
    const allowed = op.op['x-cairn-roles'].includes(role) && op.op['x-cairn-tenant'] !== '*'
    if (allowed) expect(answer.status < 500 && ![401, 403].includes(answer.status), `${role} may ${op.id}`, answer)
    else expect(isForbidden(answer), `${role} may not ${op.id}`, answer)
    // 400, 409 and 412 come after the door: the caller was let in. 404 of one's own things would mean that nothing was tried.
    if (allowed && ['Runs', 'Plans', 'Keys', 'Effects'].includes(op.op.tags[0])) expect(answer.status !== 404, `${role}: ${op.id} finds its own`, answer)
  }
}

async function otherTenant(op, me, other) {
  if (op.op['x-cairn-tenant'] === '*') return
  for (const role of ROLES.filter((r) => op.op['x-cairn-roles'].includes(r))) {
    const { target, value, headers, foreign } = requestFor(op, me, other)
    if (foreign === null) {
      skipped++
      continue
    }
    const answer = await send(me.clients[role], op.method, target, value, headers)
    // A list of a tenant that is not one's own is like that of an unknown one: 404, or a page with nothing.
    const empty = op.method === 'GET' && answer.status === 200 && answer.json?.items?.length === 0
    const refused = op.id === 'reportTasks' && answer.status === 200 && answer.body.toString().includes('_NOT_FOUND')
    expect(answer.status === foreign || empty || refused, `${role} of ${me.name}: ${op.id} of ${other.name} is ${foreign}`, answer)
  }
}

async function everyTenant(op, root, roots, of) {
  if (op.op['x-cairn-tenant'] !== '*') return
  for (const role of ROLES) {
    const { target, value, headers } = requestFor(op, of, of)
    const answer = await send(roots[role], op.method, target, value, headers)
    const allowed = op.op['x-cairn-roles'].includes(role)
    expect(allowed ? answer.status < 500 && ![401, 403, 404].includes(answer.status) : isForbidden(answer), `${role} of all tenants ${allowed ? 'may' : 'may not'} ${op.id}`, answer)
  }
}

async function nobody(op, nameless, wrongKey, of) {
  const isOpen = op.op.security.some((s) => Object.keys(s).length === 0)
  const { target, value, headers } = requestFor(op, of, of)
  const answer = await send(nameless, op.method, target, value, headers)
  if (isOpen) return expect(answer.status < 300, `anybody may ${op.id}`, answer)
  expect(answer.status === 401 && answer.json?.code === 'UNAUTHENTICATED', `nobody may ${op.id} without a key`, answer)
  if (op.id !== 'getMe') return
  const bad = await send(wrongKey, op.method, target, value, headers)
  expect(bad.status === 401, `nobody may ${op.id} with a wrong key`, bad)
}

// Revoked and changed keys: at once.
async function keysEnd(t) {
  const { admin } = t.clients
  const made = await must(admin, 201, 'POST', '/v1/keys', { name: 'short', roles: ['viewer'] })
  const client = new Client(options.url, made.key)
  await must(client, 200, 'GET', '/v1/runs')
  const got = await send(admin, 'GET', `/v1/keys/${made.keyId}`)
  const patched = await send(admin, 'PATCH', `/v1/keys/${made.keyId}`, { roles: ['producer'] }, [['If-Match', got.headers.etag]])
  expect(patched.status === 200, 'a key is changed', patched)
  expect(isForbidden(await send(client, 'GET', '/v1/runs')), 'new roles count at once')
  const stale = await send(admin, 'PATCH', `/v1/keys/${made.keyId}`, { name: 'x' }, [['If-Match', got.headers.etag]])
  expect(stale.status === 412, 'an old ETag is refused', stale)
  const without = await send(admin, 'PATCH', `/v1/keys/${made.keyId}`, { name: 'x' })
  expect(without.status === 428, 'If-Match is needed', without)
  expect((await send(admin, 'DELETE', `/v1/keys/${made.keyId}`)).status === 204, 'a key is revoked')
  const after = await send(client, 'GET', '/v1/me')
  expect(after.status === 401, 'a revoked key ends at once', after)
  const star = await send(admin, 'POST', '/v1/keys', { name: 'up', roles: ['admin'], tenantId: '*' })
  expect([403, 404].includes(star.status), 'an admin of one tenant makes no key for all', star)
  client.close()
}

async function main() {
  const root = new Client(options.url, options['admin-key'])
  const me = await must(root, 200, 'GET', '/v1/me')
  if (me.tenantId !== '*' || !me.roles.includes('admin')) throw new Error('--admin-key must be of an admin of all tenants')
  const a = await makeTenant(root, `roles-a-${tag}`)
  const b = await makeTenant(root, `roles-b-${tag}`)
  const roots = {}
  for (const role of ROLES) roots[role] = new Client(options.url, (await must(root, 201, 'POST', '/v1/keys', { name: role, roles: [role], tenantId: '*' })).key)
  const nameless = new Client(options.url)
  const wrongKey = new Client(options.url, `cairn_${'a'.repeat(16)}_${'b'.repeat(43)}`)

  const before = await fingerprint(b)
  for (const op of api.operations) await otherTenant(op, a, b)
  expect((await fingerprint(b)) === before, 'nothing of the other tenant has changed')
  for (const op of api.operations.filter((o) => o.id !== 'revokeKey')) await ownTenant(op, a)
  for (const op of api.operations.filter((o) => o.id === 'revokeKey')) await ownTenant(op, a)
  for (const op of api.operations) await everyTenant(op, root, roots, a)
  await keysEnd(a)
  // Last: too many failures from one address close the door for a while.
  const open = api.operations.filter((o) => o.op.security.some((s) => Object.keys(s).length === 0))
  for (const op of open) await nobody(op, nameless, wrongKey, a)
  for (const op of api.operations.filter((o) => !open.includes(o))) await nobody(op, nameless, wrongKey, a)
  console.log(`${api.operations.length} operations, ${ROLES.length} roles, 2 tenants: ${passed} passed, ${failed} failed, ${skipped} skipped`)
  process.exit(failed ? 1 : 0)
}

await main()
