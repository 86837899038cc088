// api_access.mjs: keys, tenants, roles, the audit trail and the log.
import { readFileSync } from 'node:fs'
import { Judged, SIX, check, event, id, ndjson, options, pause, plan, same, sixOf, test, until } from './harness.mjs'
import { acme, events, held, other, put, quick, root, run, start } from './world.mjs'

const { operator, viewer, producer, admin } = acme
const audited = async (by, found) => until('the audit record', async () => (await by.must(200, 'GET', '/v1/audit?limit=200')).items.find(found))
const byRequest = (answer, by = admin) => audited(by, (a) => a.requestId === answer.headers['x-request-id'])
// The log line of a request. Lines are written as they happen; a file may lag a little.
const logged = (answer) => until('the log line', () => {
  for (const line of readFileSync(options.log, 'utf8').split('\n')) {
    if (!line.includes(answer.headers['x-request-id'])) continue
    try {
      const value = JSON.parse(line)
      if (value.route) return value
    } catch { /* half a line */ }
  }
  return null
})

// ---- keys ----

test('keys: made, used, seen, listed; the secret is shown once', async () => {
  const answer = await admin.post('/v1/keys', { name: 'loader', roles: ['producer', 'viewer'], expiresAt: '2100-01-01T00:00:00Z' })
  same(answer.status, 201)
  const { key, keyId } = answer.json
  same(answer.headers.location, `/v1/keys/${keyId}`)
  check(key.startsWith(`cairn_${keyId}_`), key)
  const client = new Judged(key)
  const me = await client.must(200, 'GET', '/v1/me')
  same([me.tenantId, me.roles, me.expiresAt], [acme.name, ['viewer', 'producer'], '2100-01-01T00:00:00.000000Z'])
  const seen = await admin.get(`/v1/keys/${keyId}`)
  same([seen.json.createdBy, seen.json.name], [`key:${acme.ids.admin}`, 'loader'])
  check(!seen.body.toString().includes(key), 'the secret')
  check(!(await admin.get('/v1/keys?limit=1000')).body.toString().includes(key.slice(-20)), 'the secret in the list')
  client.close()
})
test('keys: a repeated request does not show the secret again', async () => {
  const headers = [['Idempotency-Key', id('k')]]
  const first = await admin.must(201, 'POST', '/v1/keys', { name: 'once', roles: ['viewer'] }, headers)
  const second = await admin.post('/v1/keys', { name: 'once', roles: ['viewer'] }, headers)
  same([second.status, second.json.key, second.json.keyId, second.headers['idempotent-replayed']], [201, null, first.keyId, 'true'])
})
test('keys: changed with If-Match; 412 when somebody was faster, 428 without', async () => {
  const made = await admin.must(201, 'POST', '/v1/keys', { name: 'x', roles: ['viewer'], expiresAt: '2100-01-01T00:00:00Z' })
  const to = `/v1/keys/${made.keyId}`
  const { etag } = (await admin.get(to)).headers
  await admin.refused(428, 'PRECONDITION_REQUIRED', 'PATCH', to, { name: 'y' }, [], '#If-Match')
  const changed = await admin.send('PATCH', to, { name: 'y', roles: ['operator'], expiresAt: null }, [['If-Match', etag]])
  same([changed.status, changed.json.name, changed.json.roles, changed.json.expiresAt], [200, 'y', ['operator'], null])
  check(changed.headers.etag !== etag, 'the ETag stayed')
  await admin.refused(412, 'PRECONDITION_FAILED', 'PATCH', to, { name: 'z' }, [['If-Match', etag]])
  await admin.refused(412, 'PRECONDITION_FAILED', 'PATCH', to, { name: 'z' }, [['If-Match', 'nonsense']])
  await admin.refused(400, 'TIME_IN_THE_PAST', 'PATCH', to, { expiresAt: '2020-01-01T00:00:00Z' }, [['If-Match', changed.headers.etag]], '/expiresAt')
  same((await admin.must(200, 'GET', to)).name, 'y')
  const client = new Judged(made.key)
  await client.must(201, 'POST', '/v1/runs', { planRef: held }) // the new roles count
  client.close()
})
test('keys: revoked ends at once, also on a connection that is open', async () => {
  const made = await admin.must(201, 'POST', '/v1/keys', { name: 'x', roles: ['viewer'] })
  const client = new Judged(made.key)
  await client.must(200, 'GET', '/v1/me')
  same((await admin.send('DELETE', `/v1/keys/${made.keyId}`)).status, 204)
  await client.refused(401, 'UNAUTHENTICATED', 'GET', '/v1/me')
  same((await admin.send('DELETE', `/v1/keys/${made.keyId}`)).status, 204)
  check((await admin.must(200, 'GET', `/v1/keys/${made.keyId}`)).revokedAt, 'it is not listed as revoked')
  client.close()
})
test('keys: expire', async () => {
  const made = await admin.must(201, 'POST', '/v1/keys', { name: 'x', roles: ['viewer'], expiresAt: new Date(Date.now() + 1500).toISOString() })
  const client = new Judged(made.key)
  await client.must(200, 'GET', '/v1/me')
  await pause(1700)
  await client.refused(401, 'UNAUTHENTICATED', 'GET', '/v1/me')
  client.close()
})
test('keys: nobody gives what they have not', async () => {
  await admin.refused(403, 'FORBIDDEN', 'POST', '/v1/keys', { name: 'x', roles: ['admin'], tenantId: '*' })
  await admin.refused(404, 'TENANT_NOT_FOUND', 'POST', '/v1/keys', { name: 'x', roles: ['viewer'], tenantId: other.name })
  for (const method of ['GET', 'DELETE']) await admin.refused(404, 'KEY_NOT_FOUND', method, `/v1/keys/${other.ids.viewer}`)
  await admin.refused(404, 'KEY_NOT_FOUND', 'PATCH', `/v1/keys/${other.ids.viewer}`, { name: 'z' }, [['If-Match', '"1"']])
  await admin.refused(400, 'ROLE_UNKNOWN', 'POST', '/v1/keys', { name: 'x', roles: ['boss'] })
  await admin.refused(400, 'TIME_IN_THE_PAST', 'POST', '/v1/keys', { name: 'x', roles: ['viewer'], expiresAt: '2020-01-01T00:00:00Z' })
  await operator.refused(403, 'FORBIDDEN', 'POST', '/v1/keys', { name: 'x', roles: ['viewer'] })
  await other.viewer.must(200, 'GET', '/v1/me')
})

test('audit: who is refused all the time does not fill the disk', async () => {
  const made = await admin.must(201, 'POST', '/v1/keys', { name: 'eager', roles: ['viewer'] })
  const eager = new Judged(made.key)
  const leftOut = async () => Number(/^cairn_audit_left_out_total (\d+)$/m.exec((await root.get('/metrics')).body.toString())[1])
  const rows = async () => (await admin.must(200, 'GET', '/v1/audit?limit=1000')).items.filter((a) => a.actor === `key:${made.keyId}` && a.outcome === 'refused')
  const before = await leftOut()
  for (let i = 0; i < 40; i++) await eager.refused(403, 'FORBIDDEN', 'POST', '/v1/runs', { planRef: held })
  const n = 40 - ((await leftOut()) - before)
  check(n >= 10 && n <= 12, `${n} were written down`) // ten, and one every six seconds
  await until('they are written down', async () => (await rows()).length >= n)
  same((await rows()).length, n)
  await pause(6500)
  await eager.refused(403, 'FORBIDDEN', 'POST', '/v1/runs', { planRef: held })
  const last = await until('the next one', async () => (await rows()).find((a) => a.reason))
  check(/^[0-9]+ before it were left out$/.test(last.reason), last.reason)
  eager.close()
})

// ---- other tenants, other roles ----

const four = (runId) => [
  ['start', 'POST', '/v1/runs', { planRef: held, context: { tenantId: acme.name, runId } }],
  ['cancel', 'POST', `/v1/runs/${runId}/cancel`, { reason: 'x' }],
  ['status', 'GET', `/v1/runs/${runId}`, undefined],
  ['signal', 'POST', `/v1/runs/${runId}/signals`, { signal: 'go' }]
]
// WE-2.1.3-2: each of the four operations as another tenant: refused, nothing changed, nothing returned.
test('the four operations as another tenant are 404, and nothing changes', async () => {
  const runId = await start(held, { context: { projectId: 'secret-project' } })
  await until('it waits', async () => (await run(runId)).openSteps === 1)
  const before = await events(runId)
  for (const [name, method, target, body] of four(runId)) {
    const answer = await other.operator.send(method, target, body)
    same(answer.status, 404, name)
    check(!/secret-project|RUNNING/.test(answer.body.toString()), `${name}: ${answer.body}`)
  }
  same(await events(runId), before)
  same((await run(runId)).status, 'RUNNING')
  const fresh = id('fresh')
  same((await other.operator.send('POST', '/v1/runs', { planRef: held, context: { tenantId: acme.name, runId: fresh } })).status, 404)
  await viewer.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/runs/${fresh}`)
})
test('a run id of another tenant can be used, or not, without a word about it', async () => {
  const runId = await start(held)
  const ref = await put([{ stepId: 'hold', type: 'wait', signal: 'go' }], {}, other.operator)
  const answer = await other.operator.post('/v1/runs', { planRef: ref, context: { runId } })
  check([404, 409].includes(answer.status), `${answer.status} ${answer.body}`)
  check(!answer.body.toString().includes(acme.name), answer.body.toString())
  same((await run(runId)).tenantId, acme.name)
})
// WE-2.1.3-16: without the role it is refused before anything happens: no event, no signal, and an audit record of the refusal.
test('without the role: 403, no event, and an audit record', async () => {
  const runId = await start(held)
  await until('it waits', async () => (await run(runId)).openSteps === 1)
  const before = await events(runId)
  for (const [name, method, target, body] of four(runId).filter(([n]) => n !== 'status')) {
    const answer = await viewer.refused(403, 'FORBIDDEN', method, target, body)
    const record = await byRequest(answer)
    same([record.outcome, record.code, record.actor, record.action], ['refused', 'FORBIDDEN', `key:${acme.ids.viewer}`, `run.${name}`], name)
    if (name !== 'start') same(record.target, runId)
  }
  await acme.worker.refused(403, 'FORBIDDEN', 'GET', `/v1/runs/${runId}`)
  same(await events(runId), before)
})

// ---- the audit trail and the log ----

// WE-2.1.3-1 (the operations; the events are in the tests of the engine), WE-2.1.3-15, WE-2.1.3-17: cancel, status and signal name the run only; the
// audit record and the log line of each of the four operations, and the events, have the six stored ids.
test('the four operations: six identifiers in audit, log and events', async () => {
  const context = { projectId: id('project'), environmentId: id('env') }
  const runId = id('run')
  const want = [acme.name, context.projectId, context.environmentId, runId, 1, 1]
  const asks = four(runId)
  const twice = await put([{ stepId: 'a', type: 'wait', signal: 'go' }, { stepId: 'b', type: 'wait', signal: 'go', dependsOn: ['a'] }])
  asks[0][3] = { planRef: twice, context: { tenantId: acme.name, runId, ...context } }
  for (const name of ['start', 'status', 'signal', 'cancel']) {
    const [, method, target, body] = asks.find(([n]) => n === name)
    const answer = await operator.send(method, target, body, [['traceparent', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01']])
    check(answer.status < 300, `${name}: ${answer.status} ${answer.body}`)
    const line = await logged(answer)
    same(sixOf(line), want, `log of ${name}`)
    same([line.status, line.method, line.traceId], [answer.status, method, '4bf92f3577b34da6a3ce929d0e0e4736'])
    if (name === 'status') continue // it changes nothing
    const record = await byRequest(answer)
    same(sixOf(record), want, `audit of ${name}`)
    same([record.outcome, record.actor, record.target, record.remote], ['done', `key:${acme.ids.operator}`, runId, '127.0.0.1'])
  }
  for (const e of await events(runId)) check(SIX.every((n) => e[n] !== undefined) && e.projectId === context.projectId, JSON.stringify(e))
})
test('cancel, status and signal of an unknown run are 404', async () => {
  for (const [name, method, target, body] of four(id('unknown')).slice(1)) same((await operator.send(method, target, body)).json.code, 'RUN_NOT_FOUND', name)
})
test('cancel by reference only: the event and the record have the stored ids', async () => {
  const context = { projectId: id('project'), environmentId: id('env') }
  const runId = await start(held, { context })
  const answer = await root.post(`/v1/runs/${runId}/cancel`, { reason: 'by root' }) // a caller of all tenants
  same(answer.status, 202)
  const cancelled = await until('it ends', async () => (await events(runId)).find((e) => e.eventType === 'RunCancelled'))
  same(sixOf(cancelled), [acme.name, context.projectId, context.environmentId, runId, 1, 1])
  const record = await byRequest(answer) // the tenant's own admin sees who it was
  same([...sixOf(record), record.reason], [acme.name, context.projectId, context.environmentId, runId, 1, 1, 'by root'])
  same(sixOf(await logged(answer)), sixOf(record))
})
// WE-2.3-1: PAUSE, RESUME and RETRY_STEP: each is authorised first, each is handled, each leaves an audit record.
test('the signals of the catalogue: refused without the role, handled and recorded with it', async () => {
  const ref = await put([{ stepId: 'hold', type: 'wait', signal: 'go' }, { stepId: 'again', type: 'exec', command: 'false', retry: { maxAttempts: 2, initialMs: 600000, maxMs: 600000 } }])
  const runId = await start(ref)
  const target = `/v1/runs/${runId}/signals`
  await until('it failed', async () => { const a = await run(runId); return a.openSteps === 1 && a.failedSteps === 1 })
  const effects = {
    PAUSE: async () => (await run(runId)).status === 'PAUSED',
    RESUME: async () => (await run(runId)).status === 'RUNNING',
    RETRY_STEP: async () => (await events(runId)).some((e) => e.eventType === 'StepStarted' && e.stepId === 'again' && e.logicalAttemptId === 2)
  }
  for (const [signal, happened] of Object.entries(effects)) {
    const body = { signal, reason: `for ${signal}`, ...(signal === 'RETRY_STEP' ? { stepId: 'again' } : {}) }
    const before = await events(runId)
    const refused = await byRequest(await viewer.refused(403, 'FORBIDDEN', 'POST', target, body))
    same([refused.outcome, refused.code, refused.target], ['refused', 'FORBIDDEN', runId], signal)
    same(await events(runId), before)
    const record = await byRequest(await operator.post(target, body))
    same([record.outcome, record.runId, record.reason, record.actor], ['done', runId, `for ${signal}`, `key:${acme.ids.operator}`], signal)
    await until(`${signal} is handled`, happened)
  }
})
test('every route that changes something leaves a record', async () => {
  const gate = await put([{ stepId: 'gate', type: 'approval' }, { stepId: 'again', type: 'exec', command: 'false', retry: { maxAttempts: 3, initialMs: 600000, maxMs: 600000 } }])
  const runId = await start(gate)
  const to = (verb) => `/v1/runs/${runId}/${verb}`
  await until('both are there', async () => { const a = await run(runId); return a.openSteps === 1 && a.failedSteps === 1 })
  const done = [
    ['run.retry', 'POST', to('retry'), { stepId: 'again', reason: 'why' }], ['run.pause', 'POST', to('pause'), { reason: 'why' }], ['run.resume', 'POST', to('resume'), { reason: 'why' }],
    ['run.approve', 'POST', to('approve'), { stepId: 'gate', reason: 'why' }], ['run.checkpoint', 'POST', to('checkpoints'), undefined], ['run.cancel', 'POST', to('cancel'), { reason: 'why' }]
  ]
  for (const [action, method, target, body] of done) {
    const answer = await operator.send(method, target, body)
    check(answer.status < 300, `${action}: ${answer.status} ${answer.body}`)
    const record = await byRequest(answer)
    same([record.action, record.outcome, record.runId, record.tenantId, record.reason], [action, 'done', runId, acme.name, body?.reason])
  }
  const rejected = await start(quick, { approval: true })
  same((await byRequest(await operator.post(`/v1/runs/${rejected}/reject`))).action, 'run.reject')
  same((await byRequest(await operator.post('/v1/plans', plan(id('plan'), [{ stepId: 'a', type: 'noop' }])))).action, 'plan.put')
  const made = await admin.post('/v1/keys', { name: 'x', roles: ['viewer'] })
  same([(await byRequest(made)).action, (await byRequest(made)).target], ['key.create', made.json.keyId])
  same((await byRequest(await admin.send('PATCH', made.headers.location, { name: 'y' }, [['If-Match', made.headers.etag]]))).action, 'key.change')
  same((await byRequest(await admin.send('DELETE', made.headers.location))).action, 'key.revoke')
  const backup = await root.post('/v1/admin/backup', { file: `${id('b')}.db` })
  if (backup.status === 201) same((await byRequest(backup, root)).action, 'admin.backup')
})
test('appended events say who appended them; a refused append is audited', async () => {
  const runId = id('appended')
  const one = await producer.post(`/v1/runs/${runId}/events`, event(acme.name, runId, 'RunStarted'))
  same((await viewer.must(200, 'GET', `/v1/events/${one.json.eventId}`)).actor, `key:${acme.ids.producer}@127.0.0.1`)
  const refused = await viewer.lines('/v1/events', ndjson([event(acme.name, runId, 'RunCompleted')]))
  same(refused.status, 403)
  same([(await byRequest(refused)).action, (await byRequest(refused)).outcome], ['event.append', 'refused'])
})
test('audit: of one tenant only its own', async () => {
  const list = (await other.admin.pages('/v1/audit', 100))
  check(list.length > 0 && list.every((a) => a.tenantId === other.name), JSON.stringify(list.find((a) => a.tenantId !== other.name)))
  await admin.refused(404, 'TENANT_NOT_FOUND', 'GET', `/v1/audit?tenantId=${other.name}`)
  await viewer.refused(403, 'FORBIDDEN', 'GET', '/v1/audit')
})
test('401 says nothing about the reason, and how to ask', async () => {
  const bodies = new Set()
  for (const key of ['', 'x', `cairn_${'a'.repeat(16)}_${'b'.repeat(43)}`, 'a.b.c']) {
    const client = new Judged(key)
    const answer = await client.refused(401, 'UNAUTHENTICATED', 'GET', '/v1/runs')
    check(answer.headers['www-authenticate'].startsWith('Bearer'), answer.headers['www-authenticate'])
    bodies.add(answer.json.detail)
    client.close()
  }
  same(bodies.size, 1)
})
