// api_runs.mjs: starting runs, repeating requests, and all that can be asked about a run.
import { createHash } from 'node:crypto'
import { Judged, check, event, id, ndjson, pause, plan, same, sixOf, test, until } from './harness.mjs'
import { acme, events, held, other, put, quick, root, run, start, step } from './world.mjs'

const { operator, viewer, producer } = acme
const key = (text) => [['Idempotency-Key', text]]

// ---- starting ----

// WE-2.1.3-14: the first event carries exactly what the context says.
test('start: a new run is 201, with Location, and its first event has the ids of the context', async () => {
  const context = { tenantId: acme.name, projectId: 'orders', environmentId: 'staging', runId: id('a b/ż') }
  const answer = await operator.post('/v1/runs', { planRef: held, context })
  same(answer.status, 201)
  same(answer.headers.location, `/v1/runs/${encodeURIComponent(context.runId)}`)
  same(answer.json.existing, false)
  same(answer.json.engineRunRef.provider, 'local')
  const [first] = await events(context.runId)
  same(sixOf(first), [acme.name, 'orders', 'staging', context.runId, 1, 1])
})
test('start: without a context it has the defaults and an id of the server', async () => {
  const made = await operator.must(201, 'POST', '/v1/runs', { planRef: quick })
  same([made.tenantId, made.projectId, made.environmentId], [acme.name, 'default', 'default'])
  check(/^[0-9a-f-]{36}$/.test(made.runId), made.runId)
})
// WE-3.2-1: whoever asks for credentials is no server for development: a plan is referred to, not brought along.
test('start: a plan in place of a reference is refused', async () => {
  const runId = id('inline')
  await operator.refused(422, 'PLAN_INLINE_REFUSED', 'POST', '/v1/runs', { plan: plan(id('plan'), [{ stepId: 'a', type: 'noop' }]), context: { runId } }, [], '/plan')
  await operator.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/runs/${runId}`)
})
test('start: the same run id again is 200 and starts nothing', async () => {
  const runId = await start(held)
  const again = await operator.must(200, 'POST', '/v1/runs', { planRef: held, context: { runId } })
  same(again.existing, true)
  same((await events(runId)).filter((e) => e.eventType === 'RunStarted').length, 1)
})
test('start: a run id belongs to the plan that it was started with', async () => {
  const runId = await start(held)
  await operator.refused(409, 'RUN_ID_TAKEN', 'POST', '/v1/runs', { planRef: quick, context: { runId } }, [], '/context/runId')
})
test('start: the same Idempotency-Key gets the first answer, byte for byte', async () => {
  const k = key(id('k'))
  const body = { planRef: held, context: { runId: id('run') }, reason: 'nightly' }
  const first = await operator.post('/v1/runs', body, k)
  const second = await operator.post('/v1/runs', body, k)
  same(first.status, 201)
  same(second.status, 201)
  check(second.body.equals(first.body), `${first.body} and then ${second.body}`)
  same(second.headers['idempotent-replayed'], 'true')
  same(first.headers['idempotent-replayed'], undefined)
  same(second.headers.location, first.headers.location)
})
test('start: a key makes the run id, too', async () => {
  const k = key(id('k'))
  const first = await operator.must(201, 'POST', '/v1/runs', { planRef: held }, k)
  const second = await operator.must(201, 'POST', '/v1/runs', { planRef: held }, k)
  same(second.runId, first.runId)
})
test('start: the same key with another body is 422', async () => {
  const k = key(id('k'))
  await operator.must(201, 'POST', '/v1/runs', { planRef: held }, k)
  await operator.refused(422, 'IDEMPOTENCY_KEY_REUSED', 'POST', '/v1/runs', { planRef: held, reason: 'x' }, k, '#Idempotency-Key')
})
test('start: a key in use is 409 and worth trying again', async () => {
  const k = key(id('k'))
  const body = { planRef: held, context: { runId: id('run') } }
  const slow = new Judged(acme.keys.operator)
  const first = slow.post('/v1/runs', body, [...k, ['Prefer', 'wait=2']])
  await until('the run is there', async () => (await viewer.get(`/v1/runs/${body.context.runId}`)).status === 200)
  const second = await operator.refused(409, 'IDEMPOTENCY_KEY_IN_USE', 'POST', '/v1/runs', body, k)
  same(second.json.retryable, true)
  check(Number(second.headers['retry-after']) >= 1, 'Retry-After')
  same((await first).status, 201)
  same((await operator.post('/v1/runs', body, k)).headers['idempotent-replayed'], 'true')
  slow.close()
})
test('start: keys of two callers do not mix', async () => {
  const k = key(id('k'))
  const first = await operator.must(201, 'POST', '/v1/runs', { planRef: held }, k)
  const second = await acme.admin.post('/v1/runs', { planRef: held }, k)
  same(second.status, 201)
  same(second.headers['idempotent-replayed'], undefined)
  check(second.json.runId !== first.runId, 'the same run')
})
test('start: refused requests use no key up', async () => {
  const k = key(id('k'))
  await operator.refused(400, 'FIELD_UNKNOWN', 'POST', '/v1/runs', { planRef: held, nope: 1 }, k, '/nope')
  await operator.must(201, 'POST', '/v1/runs', { planRef: held }, k)
})
test('start: bad keys are 400', async () => {
  for (const bad of ['two words', 'k'.repeat(256)]) await operator.refused(400, 'IDEMPOTENCY_KEY_INVALID', 'POST', '/v1/runs', { planRef: held }, key(bad))
})
test('start: Prefer: wait answers with the end of the run', async () => {
  const answer = await operator.post('/v1/runs', { planRef: quick }, [['Prefer', 'respond-async, wait=20']])
  same(answer.status, 201)
  same(answer.json.status, 'COMPLETED')
  same(answer.headers['preference-applied'], 'wait=20')
})
test('start: Prefer: wait ends after its time, without a status', async () => {
  const before = Date.now()
  const answer = await operator.post('/v1/runs', { planRef: held }, [['Prefer', 'wait=1']])
  check(Date.now() - before >= 950, 'too early')
  same(answer.json.status, undefined)
})
test('start: Prefer: wait of many for one run: each its own time, whoever leaves', async () => {
  const runId = await start(held)
  const clients = Array.from({ length: 12 }, () => new Judged(acme.keys.operator))
  const begun = Date.now()
  const took = clients.map(async (client, i) => {
    const answer = await client.post('/v1/runs', { planRef: held, context: { runId } }, [['Prefer', `wait=${1 + (i % 3)}`]]).catch(() => null)
    return answer && [answer.status, answer.json.status, Math.floor((Date.now() - begun) / 1000)]
  })
  await pause(300)
  clients[0].close() // the first, one in the middle, the last
  clients[4].close()
  clients[11].close()
  const got = await Promise.all(took)
  const stayed = got.map((g, i) => [g, 1 + (i % 3)]).filter((_, i) => ![0, 4, 11].includes(i))
  check(stayed.every(([g, s]) => g[0] === 200 && g[1] === undefined && g[2] >= s && g[2] <= s + 1), JSON.stringify(got))
  const last = clients[1].post('/v1/runs', { planRef: held, context: { runId } }, [['Prefer', 'wait=20']])
  await pause(200)
  await operator.must(202, 'POST', `/v1/runs/${runId}/signals`, { signal: 'go' })
  same((await last).json.status, 'COMPLETED')
  clients.forEach((c) => c.close())
})
test('start: Prefer: wait for a run that is there, and over', async () => {
  const runId = await start(quick)
  await until('it is over', async () => (await run(runId)).status === 'COMPLETED')
  const again = await operator.must(200, 'POST', '/v1/runs', { planRef: quick, context: { runId } }, [['Prefer', 'wait=20']])
  same([again.existing, again.status], [true, 'COMPLETED'])
})
test('start: Prefer: wait over a minute is refused', () => operator.refused(400, 'HEADER_INVALID', 'POST', '/v1/runs', { planRef: quick }, [['Prefer', 'wait=61']], '#Prefer'))
test('start: with approval it waits for it', async () => {
  const runId = await start(quick, { approval: true })
  same((await run(runId)).status, 'PENDING')
  await operator.must(202, 'POST', `/v1/runs/${runId}/approve`)
  await until('it is over', async () => (await run(runId)).status === 'COMPLETED')
})
test('start: an unknown plan is 404', () => operator.refused(404, 'PLAN_NOT_FOUND', 'POST', '/v1/runs', { planRef: { ...held, sha256: '0'.repeat(64), uri: `plan:sha256:${'0'.repeat(64)}` } }))
test('start: a reference whose hash is not that of its URI is refused', () =>
  operator.refused(422, 'PLAN_URI_NOT_ALLOWED', 'POST', '/v1/runs', { planRef: { ...held, sha256: '1'.repeat(64) } }, [], '/planRef/uri'))
test('start: a reference with another size than the plan is refused', () =>
  operator.refused(422, 'PLAN_SIZE_MISMATCH', 'POST', '/v1/runs', { planRef: { ...held, sizeBytes: held.sizeBytes + 1 } }, [], '/planRef/sizeBytes'))
test('start: a reference that names another plan is refused', () => operator.refused(422, 'PLAN_ID_MISMATCH', 'POST', '/v1/runs', { planRef: { ...held, planVersion: '2' } }))
test('start: an expired reference is refused', () => operator.refused(422, 'PLAN_REF_EXPIRED', 'POST', '/v1/runs', { planRef: { ...held, expiresAt: '2020-01-01T00:00:00Z' } }))
test('start: a malformed reference is refused with its place', () => operator.refused(422, 'PLAN_REF_INVALID', 'POST', '/v1/runs', { planRef: { uri: held.uri } }))
test('start: parameters that do not fit are 422, with the place', async () => {
  const ref = await put([{ stepId: 'one', type: 'noop' }], { parameters: { type: 'object', required: ['date'], properties: { date: { type: 'string', maxLength: 10 } } } })
  const bad = await operator.refused(422, 'PARAMETERS_INVALID', 'POST', '/v1/runs', { planRef: ref, parameters: { date: 7 } })
  same(bad.json.errors[0].pointer, '/parameters/date')
  await operator.refused(422, 'PARAMETERS_INVALID', 'POST', '/v1/runs', { planRef: ref })
  await operator.must(201, 'POST', '/v1/runs', { planRef: ref, parameters: { date: '2026-02-16' } })
})
test('start: another adapter is 422', () => operator.refused(422, 'ADAPTER_UNAVAILABLE', 'POST', '/v1/runs', { planRef: held, context: { targetAdapter: 'temporal' } }))
test('start: a context of another tenant is as if it were not there', () => operator.refused(404, 'TENANT_NOT_FOUND', 'POST', '/v1/runs', { planRef: held, context: { tenantId: other.name } }))
test('start: bodies and their types', async () => {
  await operator.refused(415, 'UNSUPPORTED_MEDIA_TYPE', 'POST', '/v1/runs', '{}', [['Content-Type', 'text/plain']])
  await operator.refused(400, 'BODY_MISSING', 'POST', '/v1/runs')
  await operator.refused(400, 'BODY_NOT_OBJECT', 'POST', '/v1/runs', '[]')
  await operator.refused(400, 'FIELD_MISSING', 'POST', '/v1/runs', {}, [], '/planRef')
  await operator.refused(400, 'PARAMETER_UNKNOWN', 'POST', '/v1/runs?x=1', { planRef: held }, [], '?x')
  const large = JSON.stringify({ planRef: held, reason: 'x'.repeat(1100000) })
  await operator.refused(413, 'BODY_TOO_LARGE', 'POST', '/v1/runs', large)
})

// ---- one run ----

test('status: where it stands, with an ETag that changes with it', async () => {
  const runId = await start(held)
  const one = await until('it waits', async () => { const a = await viewer.get(`/v1/runs/${runId}`); return a.json.openSteps === 1 && a })
  same(one.json.status, 'RUNNING')
  const same304 = await viewer.get(`/v1/runs/${runId}`, [['If-None-Match', one.headers.etag]])
  same([same304.status, same304.body.length, same304.headers.etag], [304, 0, one.headers.etag])
  await operator.must(202, 'POST', `/v1/runs/${runId}/signals`, { signal: 'go' })
  const later = await until('it is over', async () => { const a = await viewer.get(`/v1/runs/${runId}`, [['If-None-Match', one.headers.etag]]); return a.status === 200 && a.json.status === 'COMPLETED' && a })
  check(later.headers.etag !== one.headers.etag, 'the ETag stayed')
})
test('status: a producer may ask, too; an unknown run is 404', async () => {
  const runId = await start(held)
  await producer.must(200, 'GET', `/v1/runs/${runId}`)
  for (const path of ['', '/steps', '/state', '/explain', '/events']) await viewer.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/runs/nobody${path}`)
})
test('steps: state, times, outputs', async () => {
  const ref = await put([{ stepId: 'a', type: 'exec', command: ['echo', '{"n":7}'], output: 'json' }, { stepId: 'b', type: 'exec', command: ['false'], dependsOn: ['a'], onFailure: 'continue' }])
  const runId = await start(ref)
  await until('it is over', async () => (await run(runId)).completedAt)
  same((await step(runId, 'a')).output, { n: 7 })
  same((await step(runId, 'a')).state, 'SUCCESS')
  const b = await step(runId, 'b')
  same([b.state, b.code, b.logicalAttemptId], ['FAILED', 'EXIT_CODE', 1])
  const plain = await viewer.must(200, 'GET', `/v1/runs/${runId}/steps`)
  check(plain.items.every((s) => !('output' in s)), 'outputs without being asked')
})
test('state: now, and after every event, as replay makes it', async () => {
  const runId = id('replayed')
  const list = [event(acme.name, runId, 'RunStarted'), event(acme.name, runId, 'StepStarted', { stepId: 's' }), event(acme.name, runId, 'StepFailed', { stepId: 's' }),
    event(acme.name, runId, 'StepStarted', { stepId: 's', logicalAttemptId: 2 }), event(acme.name, runId, 'StepCompleted', { stepId: 's', logicalAttemptId: 2 }), event(acme.name, runId, 'RunCompleted')]
  const want = [[], ['RUNNING'], ['FAILED'], ['RUNNING'], ['SUCCESS'], ['SUCCESS']]
  const made = await producer.lines('/v1/events', ndjson(list))
  check(made.lines.every((l) => l.eventId), JSON.stringify(made.lines))
  for (const [i, states] of want.entries()) {
    const state = await viewer.must(200, 'GET', `/v1/runs/${runId}/state?at=${i + 1}`)
    same(state.status, i === 5 ? 'COMPLETED' : 'RUNNING', `status at ${i + 1}`)
    same(state.steps.map((s) => s.state), states, `steps at ${i + 1}`)
  }
  const now = await viewer.must(200, 'GET', `/v1/runs/${runId}/state`)
  same(now, await viewer.must(200, 'GET', `/v1/runs/${runId}/state?at=6`))
  await viewer.refused(404, 'POSITION_NOT_FOUND', 'GET', `/v1/runs/${runId}/state?at=7`, undefined, [], '?at')
  await viewer.refused(400, 'NUMBER_OUT_OF_RANGE', 'GET', `/v1/runs/${runId}/state?at=0`, undefined, [], '?at')
})
test('explain: what a run waits for', async () => {
  const runId = await start(held)
  const x = await until('it waits', async () => { const a = await viewer.must(200, 'GET', `/v1/runs/${runId}/explain`); return a.waits.length > 0 && a })
  same(x.status, 'RUNNING')
  same(x.waits[0].stepId, 'hold')
})
test('checkpoints: saved, and the run goes on', async () => {
  const runId = await start(held)
  const made = await operator.must(201, 'POST', `/v1/runs/${runId}/checkpoints`)
  check(made.eventId, JSON.stringify(made))
  await operator.refused(400, 'BODY_UNEXPECTED', 'POST', `/v1/runs/${runId}/checkpoints`, {})
  await operator.refused(404, 'RUN_NOT_FOUND', 'POST', '/v1/runs/nobody/checkpoints')
  same((await run(runId)).status, 'RUNNING')
})
test('wake: a run is looked at, and nothing changes', async () => {
  const runId = await start(held)
  const before = await until('it waits', async () => { const a = await run(runId); return a.openSteps === 1 && a })
  same(await operator.must(202, 'POST', `/v1/runs/${runId}/wake`), { runId })
  same((await run(runId)).runSeq, before.runSeq)
  await operator.refused(404, 'RUN_NOT_FOUND', 'POST', '/v1/runs/nobody/wake')
})
test('resolve: a run by its provider reference; not for another tenant', async () => {
  const runId = id('linked')
  const link = { provider: 'temporal', workflowId: id('wf'), providerRunId: 'r1' }
  await producer.must(201, 'POST', `/v1/runs/${runId}/events`, event(acme.name, runId, 'RunStarted'))
  await producer.must(201, 'POST', `/v1/runs/${runId}/events`, event(acme.name, runId, 'RunProviderLinked', { payload: link }))
  const query = `/v1/resolve?${new URLSearchParams(link)}`
  same((await viewer.must(200, 'GET', query)).runId, runId)
  same((await viewer.must(200, 'GET', query)).correlationId, (await run(runId)).correlationId)
  await other.viewer.refused(404, 'RUN_NOT_FOUND', 'GET', query)
  await viewer.refused(404, 'RUN_NOT_FOUND', 'GET', query.replace('r1', 'r2'))
  await viewer.refused(400, 'PARAMETER_MISSING', 'GET', '/v1/resolve?provider=temporal')
})

// ---- plans ----

test('plans: put, again, get by hash, 304', async () => {
  const text = `// a comment\n${JSON.stringify(plan(id('plan'), [{ stepId: 'a', type: 'noop' }]))}`
  const first = await operator.post('/v1/plans', text, [['Content-Type', 'application/jsonc']])
  same(first.status, 201)
  same(first.json.sha256, createHash('sha256').update(text).digest('hex'))
  same(first.headers.location, `/v1/plans/${first.json.sha256}`)
  same((await operator.post('/v1/plans', text, [['Content-Type', 'application/jsonc']])).status, 200)
  const got = await acme.worker.get(`/v1/plans/${first.json.sha256}`)
  same(got.body.toString(), text)
  same(got.headers['content-type'], 'application/jsonc')
  same((await viewer.get(`/v1/plans/${first.json.sha256}`, [['If-None-Match', got.headers.etag]])).status, 304)
  await other.viewer.refused(404, 'PLAN_NOT_FOUND', 'GET', `/v1/plans/${first.json.sha256}`)
})
test('plans: another tenant cannot start, read, or tell from an unknown one what a tenant put', async () => {
  const steps = plan(id('plan'), [{ stepId: 'a', type: 'noop' }])
  const ref = await operator.must(201, 'POST', '/v1/plans', steps)
  const unknown = { ...ref, sha256: createHash('sha256').update(id('none')).digest('hex') }
  unknown.uri = `plan:sha256:${unknown.sha256}`
  const as = (answer, r) => JSON.stringify({ ...answer.json, instance: '', requestId: '' }).replaceAll(r.sha256, '#')
  const startOf = (r, runId) => other.operator.refused(404, 'PLAN_NOT_FOUND', 'POST', '/v1/runs', { planRef: r, context: { runId } })
  const absent = as(await startOf(unknown, id('run')), unknown)
  same(as(await startOf(ref, id('run')), ref), absent) // not in memory
  await start(ref)
  same(as(await startOf(ref, id('run')), ref), absent) // in memory, for acme
  for (const r of [ref, unknown]) await other.viewer.refused(404, 'PLAN_NOT_FOUND', 'GET', `/v1/plans/${r.sha256}`)
  same((await root.must(200, 'GET', `/v1/plans/${ref.sha256}`)).metadata, steps.metadata) // who sees every tenant
  same((await root.send('POST', '/v1/runs', { planRef: ref, context: { tenantId: other.name, runId: id('run') } })).status, 404)
  await other.operator.must(201, 'POST', '/v1/plans', steps) // its own, of the same bytes
  await start(ref, { by: other.operator })
})
test('plans: a large one is read beside other work', async () => {
  const steps = Array.from({ length: 3000 }, (_, i) => ({ stepId: `s${i}`, type: 'noop', dependsOn: i ? ['s0'] : [] }))
  const ref = await put([{ ...steps[0], type: 'wait', signal: 'go', dependsOn: [] }, ...steps.slice(1)])
  check(ref.sizeBytes > 65536, `${ref.sizeBytes}`)
  const ids = await Promise.all(Array.from({ length: 8 }, () => start(ref)))
  same(new Set(ids).size, 8)
})
test('plans: all that is wrong is told at once, with its place', async () => {
  const bad = plan('bad', [{ stepId: 'a', type: 'exec' }, { stepId: 'a', type: 'nope' }, { stepId: 'c', type: 'noop', dependsOn: ['z'] }])
  const answer = await operator.refused(422, 'PLAN_INVALID', 'POST', '/v1/plans', bad)
  check(answer.json.errors.length >= 3, JSON.stringify(answer.json.errors))
  const report = await viewer.must(200, 'POST', '/v1/plans/validate', bad)
  same([report.valid, report.errors.length], [false, answer.json.errors.length])
  check(report.errors.every((e) => e.line >= 1 && e.column >= 1), JSON.stringify(report.errors))
})
test('plans: validate keeps nothing', async () => {
  const good = plan(id('plan'), [{ stepId: 'a', type: 'noop' }])
  same((await viewer.must(200, 'POST', '/v1/plans/validate', good)).valid, true)
  await viewer.refused(404, 'PLAN_NOT_FOUND', 'GET', `/v1/plans/${createHash('sha256').update(JSON.stringify(good)).digest('hex')}`)
})

// ---- the server itself ----

test('meta: me, livez, readyz, openapi.json, metrics, stats, status, verify', async () => {
  const me = await viewer.must(200, 'GET', '/v1/me')
  same([me.tenantId, me.roles, me.name], [acme.name, ['viewer'], `key:${acme.ids.viewer}`])
  const nobody = new Judged('')
  for (const path of ['/livez', '/readyz', '/openapi.json']) await nobody.must(200, 'GET', path)
  await nobody.refused(401, 'UNAUTHENTICATED', 'GET', '/metrics')
  await viewer.refused(403, 'FORBIDDEN', 'GET', '/metrics')
  const metrics = (await root.get('/metrics')).body.toString()
  check(/cairn_http_requests_total\{route="\/v1\/me",method="GET",code="2xx"\} \d/.test(metrics), metrics.slice(0, 500))
  const stats = await root.must(200, 'GET', '/v1/admin/stats')
  check(stats.runs > 0 && stats.events > 0, JSON.stringify(stats))
  check((await root.must(200, 'GET', '/v1/admin/status')).connections >= 1, 'connections')
  const report = await root.must(200, 'POST', '/v1/admin/verify', { state: true })
  same([report.damaged, report.state], [false, true])
  await acme.admin.refused(403, 'FORBIDDEN', 'GET', '/v1/admin/stats')
  nobody.close()
})
test('backup: a copy on SQLite, and 422 on PostgreSQL', async () => {
  const file = `${id('copy')}.db`
  const answer = await root.post('/v1/admin/backup', { file })
  if (answer.status === 422) return same(answer.json.code, 'BACKUP_UNSUPPORTED')
  same(answer.status, 201)
  check(answer.json.bytes > 4096, answer.body.toString())
  await root.refused(409, 'FILE_EXISTS', 'POST', '/v1/admin/backup', { file })
  await root.refused(400, 'FILE_NAME_INVALID', 'POST', '/v1/admin/backup', { file: '../x' })
})
