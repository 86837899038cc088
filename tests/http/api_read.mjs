// api_read.mjs: lists and their pages, filters, the feed, traces, causes, alerts.
import { randomUUID } from 'node:crypto'
import { Judged, check, event, id, ndjson, same, test, until } from './harness.mjs'
import { acme, held, other, put, quick, root, run, start } from './world.mjs'

const { operator, viewer, producer } = acme
const of = (runId, type, more) => event(acme.name, runId, type, more)
const ids = (items) => items.map((r) => r.runId)
const distinct = (list) => new Set(list).size === list.length
async function appendRuns(n, more) {
  const made = Array.from({ length: n }, () => id('listed'))
  const { lines } = await producer.lines('/v1/events', ndjson(made.map((runId) => of(runId, 'RunStarted', more))))
  check(lines.length === n && lines.every((l) => l.runSeq === 1), JSON.stringify(lines).slice(0, 300))
  return made
}

// ---- pages ----

test('runs: all pages have everything once, newest first, while others are started', async () => {
  const projectId = id('project')
  const made = await appendRuns(23, { projectId })
  const got = await viewer.pages(`/v1/runs?projectId=${projectId}`, 4, () => appendRuns(2, { projectId }))
  same(ids(got), [...made].reverse())
})
test('runs: cursors of other lists, and spoiled ones, are refused', async () => {
  const feed = await viewer.must(200, 'GET', '/v1/events?limit=1')
  for (const bad of [feed.next, 'x', 'AAAA', `${feed.next}A`]) await viewer.refused(400, 'CURSOR_INVALID', 'GET', `/v1/runs?cursor=${bad}`, undefined, [], '?cursor')
  for (const list of ['/v1/alerts', '/v1/events', '/v1/runs/x/events', `/v1/traces/${randomUUID()}`]) await viewer.refused(400, 'CURSOR_INVALID', 'GET', `${list}?cursor=x`)
  for (const list of ['/v1/keys', '/v1/audit']) await acme.admin.refused(400, 'CURSOR_INVALID', 'GET', `${list}?cursor=x`)
})
test('events of a run: all pages, in order, while it goes on', async () => {
  const [runId] = await appendRuns(1, {})
  let n = 0
  const more = () => producer.lines('/v1/events', ndjson([of(runId, 'StepStarted', { stepId: `s${n++}` })]))
  for (let i = 0; i < 12; i++) await more()
  const got = await viewer.pages(`/v1/runs/${runId}/events`, 3, (page) => page < 4 && more())
  check(got.length >= 13 + 4 && got.every((e, i) => e.runSeq === i + 1), got.map((e) => e.runSeq).join())
  const after = await viewer.must(200, 'GET', `/v1/runs/${runId}/events?after=11&limit=2`)
  same(after.items.map((e) => e.runSeq), [12, 13])
})
test('feed: all pages, without a gap, while others append', async () => {
  await appendRuns(1000, {})
  const got = await viewer.pages('/v1/events', 200, (page) => page < 3 && appendRuns(3, {}))
  check(got.every((e, i) => e.sequenceNumber === i + 1 && e.tenantId === acme.name), 'a gap, or an event of another tenant')
  const tail = await viewer.must(200, 'GET', `/v1/events?after=${got.length - 2}`)
  same(tail.items.slice(0, 2).map((e) => e.eventId), got.slice(-2).map((e) => e.eventId))
  check(got[0].correlationId && got[0].actor, JSON.stringify(got[0]))
})
test('events: a page of large ones is short, and has a next', async () => {
  const runId = id('large')
  const correlation = async () => (await run(runId)).correlationId
  const payload = { text: 'x'.repeat(250000) }
  const started = await producer.must(201, 'POST', `/v1/runs/${runId}/events`, of(runId, 'RunStarted', { payload }))
  check(started.eventId, 'no event')
  for (let batch = 0; batch < 3; batch++) {
    const list = Array.from({ length: 20 }, (_, i) => of(runId, 'StepStarted', { stepId: `s${batch}-${i}`, payload }))
    check((await producer.lines('/v1/events', ndjson(list))).lines.every((l) => l.eventId), 'refused')
  }
  const first = (await viewer.must(200, 'GET', `/v1/runs/${runId}/events?limit=1`)).items[0]
  const before = (await viewer.must(200, 'GET', `/v1/events/${first.eventId}`)).sequenceNumber - 1
  for (const [list, count] of [[`/v1/runs/${runId}/events?limit=1000`, 61], [`/v1/events?limit=1000&after=${before}`, 61], [`/v1/traces/${await correlation()}?limit=1000`, 61]]) {
    const got = []
    let next = null
    for (let pages = 0; pages === 0 || next; pages++) {
      const answer = await viewer.get(`${list}${next ? `&cursor=${next}` : ''}`)
      same(answer.status, 200)
      check(answer.body.length < 5e6 && answer.json.items.length > 0 && pages < 10, `${list}: ${answer.body.length} bytes, ${answer.json.items.length} items`)
      got.push(...answer.json.items.map((e) => e.eventId))
      next = answer.json.next
    }
    check(got.length >= count && distinct(got) && got[0] === first.eventId, `${list}: ${got.length} events`)
  }
})
test('feed: a caller of all tenants says whose', async () => {
  await appendRuns(1, {})
  await root.refused(400, 'PARAMETER_MISSING', 'GET', '/v1/events', undefined, [], '?tenantId')
  same((await root.must(200, 'GET', `/v1/events?tenantId=${acme.name}&limit=1`)).items[0].tenantId, acme.name)
  same((await root.must(200, 'GET', '/v1/events?tenantId=nobody')).items, [])
  await viewer.refused(404, 'TENANT_NOT_FOUND', 'GET', `/v1/events?tenantId=${other.name}`)
})
test('keys and audit: all pages have everything once', async () => {
  const { admin } = acme
  for (let i = 0; i < 5; i++) await admin.must(201, 'POST', '/v1/keys', { name: `page ${i}`, roles: ['viewer'] })
  const keys = (await admin.pages('/v1/keys', 2)).map((k) => k.keyId)
  check(distinct(keys) && keys.length >= 10 && Object.values(acme.ids).every((k) => keys.includes(k)), keys.join())
  same(keys, [...keys].sort(), 'order of keys')
  const audit = (await admin.pages('/v1/audit', 3, (n) => n === 0 && start(held))).map((a) => a.auditNo)
  check(distinct(audit) && audit.length > 10 && audit.every((n, i) => i === 0 || n < audit[i - 1]), audit.join())
})
test('limits of pages', async () => {
  for (const list of ['/v1/runs', '/v1/events', '/v1/alerts']) {
    await viewer.refused(400, 'NUMBER_OUT_OF_RANGE', 'GET', `${list}?limit=0`, undefined, [], '?limit')
    await viewer.refused(400, 'NUMBER_OUT_OF_RANGE', 'GET', `${list}?limit=1001`, undefined, [], '?limit')
    await viewer.refused(400, 'PARAMETER_REPEATED', 'GET', `${list}?limit=1&limit=1`, undefined, [], '?limit')
    await viewer.refused(400, 'PARAMETER_UNKNOWN', 'GET', `${list}?page=2`, undefined, [], '?page')
    await viewer.must(200, 'GET', `${list}?limit=1000`)
  }
})

// ---- filters ----

// WE-2.1.3-3: by tenant and project, only that project's runs.
test('runs: filters', async () => {
  const projectId = id('project')
  const mine = { projectId, environmentId: id('env'), planId: id('plan'), planVersion: '9' }
  const [a, b] = await appendRuns(2, mine)
  const [c] = await appendRuns(1, { ...mine, environmentId: 'elsewhere', planVersion: '10' })
  await producer.lines('/v1/events', ndjson([of(b, 'RunCompleted', mine)]))
  const asked = async (query) => ids(await viewer.pages(`/v1/runs?${new URLSearchParams({ projectId, ...query })}`, 50)).sort().join()
  const want = (...list) => [...list].sort().join()
  same(await asked({}), want(a, b, c))
  same(await asked({ tenantId: acme.name }), want(a, b, c))
  same(await asked({ environmentId: mine.environmentId }), want(a, b))
  same(await asked({ planId: mine.planId, planVersion: '10' }), want(c))
  same(await asked({ status: 'COMPLETED' }), want(b))
  same(await asked({ status: 'COMPLETED,RUNNING' }), want(a, b, c))
  same(ids(await viewer.pages(`/v1/runs?projectId=${projectId}&status=COMPLETED&status=FAILED`, 50)), [b])
  same(await asked({ correlationId: (await run(a)).correlationId }), want(...(await shares(a, [a, b, c]))))
  same(await asked({ text: a }), want(a))
  same(await asked({ inconsistent: 'true' }), '')
  same(await asked({ since: '2100-01-01T00:00:00Z' }), '')
  same(await asked({ until: '2100-01-01T00:00:00Z' }), want(a, b, c))
  same(await asked({ planId: 'nope' }), '')
  same(await root.pages(`/v1/runs?projectId=${projectId}&since=2100-01-01T00:00:00Z`, 50), []) // also of all tenants
  same((await root.pages(`/v1/runs?projectId=${projectId}&until=2100-01-01T00:00:00Z`, 2)).length, 3)
  same(await root.pages(`/v1/runs?projectId=${projectId}&until=2020-01-01T00:00:00Z`, 50), [])
  await viewer.refused(400, 'PARAMETER_INVALID', 'GET', '/v1/runs?status=DONE', undefined, [], '?status')
  await viewer.refused(400, 'PARAMETER_INVALID', 'GET', '/v1/runs?status=FAILED,', undefined, [], '?status')
  await viewer.refused(404, 'TENANT_NOT_FOUND', 'GET', `/v1/runs?tenantId=${other.name}`)
})
async function shares(a, list) { // runs of one request without a traceparent may have a trace each, or share one
  const trace = (await run(a)).correlationId
  const out = []
  for (const runId of list) if ((await run(runId)).correlationId === trace) out.push(runId)
  return out
}
test('runs: by substatus, and by provider', async () => {
  const projectId = id('project')
  const ref = await put([{ stepId: 'a', type: 'exec', command: 'false', retry: { maxAttempts: 2, initialMs: 600000, maxMs: 600000 } }])
  const runId = await start(ref, { context: { projectId } })
  await start(held, { context: { projectId } })
  await until('it is to be tried again', async () => (await run(runId)).substatus === 'RETRYING')
  same(ids(await viewer.pages(`/v1/runs?projectId=${projectId}&substatus=RETRYING`, 50)), [runId])
  await viewer.refused(400, 'SUBSTATUS_INVALID', 'GET', '/v1/runs?substatus=NOPE')
  const link = { provider: 'conductor', workflowId: id('wf'), providerRunId: 'r' }
  const [linked] = await appendRuns(1, { projectId })
  await producer.lines('/v1/events', ndjson([of(linked, 'RunProviderLinked', { projectId, payload: link })]))
  same(ids(await viewer.pages(`/v1/runs?provider=conductor&workflowId=${link.workflowId}`, 50)), [linked])
})

// ---- traces, causes, single events ----

test('trace: all that belongs to a traceparent, in pages', async () => {
  const trace = randomUUID()
  const headers = [['traceparent', `00-${trace.replaceAll('-', '')}-00f067aa0ba902b7-01`]]
  const a = await start(quick, { headers })
  const b = await start(quick, { headers })
  for (const runId of [a, b]) await until('it is over', async () => (await run(runId)).completedAt)
  same((await run(a)).correlationId, trace)
  const got = await viewer.pages(`/v1/traces/${trace}`, 3)
  same([...new Set(ids(got))].sort(), [a, b].sort())
  check(got.every((e) => e.correlationId === trace) && distinct(got.map((e) => e.eventId)), 'another trace, or twice')
  check(got.every((e, i) => i === 0 || e.sequenceNumber > got[i - 1].sequenceNumber), 'order')
  same(got.filter((e) => e.runSeq).length, (await run(a)).runSeq + (await run(b)).runSeq) // facts have none
  same((await other.viewer.must(200, 'GET', `/v1/traces/${trace}`)).items, [])
  same((await root.pages(`/v1/traces/${trace}?tenantId=${acme.name}`, 3)).length, got.length)
  await viewer.refused(404, 'TRACE_NOT_FOUND', 'GET', '/v1/traces/nope')
  const problem = await viewer.get('/v1/runs/nobody', headers)
  same(problem.json.traceId, trace.replaceAll('-', ''))
})
test('trace: a caller of all tenants names one when there are several', async () => {
  const trace = randomUUID()
  const headers = [['traceparent', `00-${trace.replaceAll('-', '')}-00f067aa0ba902b7-01`]]
  const list = [acme.name, other.name].map((tenant) => Array.from({ length: 5 }, () => event(tenant, id('both'), 'RunStarted')))
  await root.lines('/v1/events', ndjson(list[0]), headers)
  same((await root.pages(`/v1/traces/${trace}`, 3)).map((e) => e.eventId), list[0].map((e) => e.eventId))
  await root.lines('/v1/events', ndjson(list[1]), headers)
  await root.refused(400, 'PARAMETER_MISSING', 'GET', `/v1/traces/${trace}`, undefined, [], '?tenantId')
  same((await root.pages(`/v1/traces/${trace}?tenantId=${other.name}`, 2)).map((e) => e.eventId), list[1].map((e) => e.eventId))
  same((await root.must(200, 'GET', `/v1/traces/${randomUUID()}`)).items, [])
})
test('causes: from an event back to the start', async () => {
  const runId = await start(quick)
  await until('it is over', async () => (await run(runId)).completedAt)
  const list = (await viewer.must(200, 'GET', `/v1/traces/${(await run(runId)).correlationId}`)).items
  const last = list.at(-1)
  const causes = await viewer.must(200, 'GET', `/v1/events/${last.eventId}/causes`)
  same(causes.items[0].eventId, last.eventId)
  for (const [i, e] of causes.items.entries()) if (causes.items[i + 1]) same(e.causationId, causes.items[i + 1].eventId)
  same(causes.more, false)
  const one = await viewer.must(200, 'GET', `/v1/events/${last.eventId}/causes?limit=1`)
  same([one.items.length, one.more], [1, causes.items.length > 1])
  same((await viewer.must(200, 'GET', `/v1/events/${last.eventId}`)).eventType, last.eventType)
  for (const path of ['', '/causes']) {
    await other.viewer.refused(404, 'EVENT_NOT_FOUND', 'GET', `/v1/events/${last.eventId}${path}`)
    await viewer.refused(404, 'EVENT_NOT_FOUND', 'GET', `/v1/events/${randomUUID()}${path}`)
    await viewer.refused(404, 'EVENT_NOT_FOUND', 'GET', `/v1/events/x${path}`)
  }
})

// ---- alerts (the tenant "alerted" was filled before the server began: over HTTP such events are refused) ----

test('alerts: all pages have each recorded contradiction once', async () => {
  const key = (await root.must(201, 'POST', '/v1/keys', { name: 'a', roles: ['viewer'], tenantId: 'alerted' })).key
  const client = new Judged(key)
  const all = await client.must(200, 'GET', '/v1/alerts')
  same(all.items.map((a) => a.eventType).sort(), ['RunPaused', 'RunPaused', 'RunResumed', 'RunResumed', 'RunResumed', 'StepCompleted'])
  for (const limit of [1, 2, 4]) same((await client.pages('/v1/alerts', limit)).map((a) => a.eventId), all.items.map((a) => a.eventId), `pages of ${limit}`)
  const runId = all.items[0].runId
  const one = await client.pages(`/v1/alerts?runId=${runId}`, 2)
  same(one.length, 3)
  check(one.every((a) => a.runId === runId && a.code === 'INVALID_TRANSITION'), JSON.stringify(one))
  same((await root.pages('/v1/alerts?tenantId=alerted', 2)).length, 6)
  same((await client.pages('/v1/runs?inconsistent=true', 1)).length, 2)
  same((await viewer.must(200, 'GET', '/v1/alerts')).items, [])
  await viewer.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/alerts?runId=${runId}`)
  client.close()
})
