// api_effects.mjs: effects: asked for, listed, shown, put back. (What becomes of one that is dead is in tests/e2e/effects.sh.)
import { check, event, id, same, test, until } from './harness.mjs'
import { acme, other, root } from './world.mjs'

const { operator, producer, viewer, worker, admin } = acme
const keyed = (key = id('k')) => [['Idempotency-Key', key]]
const at = (runId) => `/v1/runs/${encodeURIComponent(runId)}/effects`
const ALL = 'PENDING,PROCESSING,COMPLETED,FAILED,DEAD_LETTER'

async function appended(of = acme) {
  const runId = id('effects run')
  await of.producer.must(201, 'POST', `/v1/runs/${encodeURIComponent(runId)}/events`, event(of.name, runId, 'RunStarted'))
  return runId
}
const ask = (runId, body, by = operator, headers) => by.must(201, 'POST', at(runId), { effectType: 'X', payload: {}, ...body }, headers)
const audited = async (answer) => (await admin.must(200, 'GET', '/v1/audit?limit=100')).items.filter((a) => a.requestId === answer.headers['x-request-id'])

test('effects: asked for, with all that can be said', async () => {
  const runId = await appended()
  const answer = await producer.post(at(runId), { effectType: 'SOR_UPDATE', payload: { record: 7, idempotency_key: id('key') }, stepId: 'load', maxRetries: 0, baseDelayMs: 86400000 })
  const e = answer.json
  same([answer.status, answer.headers.location, e.existing], [201, `/v1/effects/${e.effectId}`, false])
  same([e.effectType, e.status, e.tenantId, e.runId, e.stepId, e.payload.record, e.executions, e.maxRetries, e.baseDelayMs], ['SOR_UPDATE', 'PENDING', acme.name, runId, 'load', 7, 0, 0, 86400000])
  same(e.idempotencyKey, e.payload.idempotency_key)
  const shown = await viewer.must(200, 'GET', answer.headers.location)
  same([shown.effectId, shown.createdAt, shown.existing], [e.effectId, e.createdAt, undefined])
  const facts = (await viewer.pages('/v1/events', 1000)).filter((f) => f.eventType === 'EffectRequested' && f.runId === runId)
  same(facts.map((f) => f.actor), [`key:${acme.ids.producer}@127.0.0.1`])
})
test('effects: a type has its own retries', async () => {
  const runId = await appended()
  const mail = await ask(runId, { effectType: 'SEND_EMAIL' })
  const call = await ask(runId, { effectType: 'API_CALL' })
  same([mail.maxRetries, mail.baseDelayMs, call.maxRetries, call.baseDelayMs], [3, 2000, 5, 1000])
})
test('effects: the same key is the same effect, in one tenant', async () => {
  const runId = await appended()
  const payload = { n: 1, idempotency_key: id('key') }
  const first = await ask(runId, { payload })
  const second = await operator.post(at(await appended()), { effectType: 'Y', payload: { ...payload, n: 2 } })
  same([second.status, second.json.existing, second.json.effectId, second.json.payload.n, second.headers.location], [200, true, first.effectId, 1, `/v1/effects/${first.effectId}`])
  same(await audited(second), []) // nothing has changed
  const theirs = await ask(await appended(other), { payload }, other.operator)
  check(theirs.effectId !== first.effectId, 'one effect for two tenants')
})
test('effects: an Idempotency-Key makes a repeated request one effect', async () => {
  const runId = await appended()
  const headers = keyed()
  const body = { effectType: 'X', payload: { n: 1 } }
  const first = await operator.post(at(runId), body, headers)
  const second = await operator.post(at(runId), body, headers)
  same([second.status, second.json.effectId, second.json.existing, second.headers.location, second.headers['idempotent-replayed']], [201, first.json.effectId, false, first.headers.location, 'true'])
  same((await viewer.must(200, 'GET', at(runId))).items.length, 1)
  same((await audited(first)).length + (await audited(second)).length, 1)
  await operator.refused(422, 'IDEMPOTENCY_KEY_REUSED', 'POST', at(runId), { effectType: 'X', payload: { n: 2 } }, headers, '#Idempotency-Key')
  const without = await operator.post(at(runId), body) // without one it is another
  check(without.status === 201 && without.json.effectId !== first.json.effectId, without.body.toString())
})
test('effects: an Idempotency-Key of one that was there already', async () => {
  const runId = await appended()
  const body = { effectType: 'X', payload: { idempotency_key: id('key') } }
  const first = await ask(runId, body)
  const headers = keyed()
  for (const replayed of [undefined, 'true']) {
    const answer = await operator.post(at(runId), body, headers)
    same([answer.status, answer.json.effectId, answer.json.existing, answer.headers['idempotent-replayed']], [200, first.effectId, true, replayed])
  }
})
test('effects: what cannot be asked for', async () => {
  const runId = await appended()
  const no = (code, body, where, status = 400) => operator.refused(status, code, 'POST', at(runId), body, [], where)
  const x = (payload) => ({ effectType: 'X', payload })
  await no('FIELD_MISSING', { payload: {} }, '/effectType')
  await no('FIELD_MISSING', { effectType: 'X' }, '/payload')
  await no('FIELD_UNKNOWN', { ...x({}), surplus: 1 }, '/surplus')
  await no('FIELD_TYPE', { effectType: 1, payload: {} }, '/effectType')
  await no('FIELD_EMPTY', { effectType: '', payload: {} }, '/effectType')
  await no('EFFECT_TYPE_INVALID', { effectType: 'two words', payload: {} }, '/effectType')
  await no('EFFECT_TYPE_INVALID', { effectType: 'x'.repeat(101), payload: {} }, '/effectType')
  for (const payload of [[], 'x', 1, null]) await no('EFFECT_PAYLOAD_INVALID', x(payload), '/payload')
  for (const key of ['', 'k'.repeat(236), 'ż', ' k', 7, 'ALERT:disk is full']) await no('EFFECT_KEY_INVALID', x({ idempotency_key: key }), '/payload/idempotency_key')
  for (const header of ['Authorization', 'cookie', 'X-API-Key']) await no('EFFECT_SECRET_PLAIN', x({ headers: { [header]: 'secret' } }), `/payload/headers/${header}`)
  await no('FIELD_EMPTY', { ...x({}), stepId: '' }, '/stepId')
  await no('DELIMITER_IN_FIELD', { ...x({}), stepId: 'a|b' }, '/stepId')
  for (const n of [-1, 1001]) await no('NUMBER_OUT_OF_RANGE', { ...x({}), maxRetries: n }, '/maxRetries')
  for (const n of [-1, 86400001]) await no('NUMBER_OUT_OF_RANGE', { ...x({}), baseDelayMs: n }, '/baseDelayMs')
  await no('JSON_TOO_LARGE', x({ text: 'x'.repeat(300000) }), undefined, 413)
  await no('BODY_MISSING', undefined)
  await operator.refused(400, 'PARAMETER_UNKNOWN', 'POST', `${at(runId)}?limit=1`, x({}), [], '?limit')
  await operator.refused(404, 'RUN_NOT_FOUND', 'POST', at('nobody'), x({}))
  same((await viewer.must(200, 'GET', at(runId))).items, [])
  await ask(runId, x({ headers: { Authorization: { secret: 'TOKEN' } } })) // named, it may stand there
})
test('effects: lists, filters and pages', async () => {
  const [one, two] = [await appended(), await appended()]
  const type = id('Type')
  const made = []
  for (let n = 0; n < 5; n++) made.unshift((await ask(n % 2 ? one : two, { effectType: type, payload: { n } })).effectId)
  await ask(one, { effectType: 'Other' })
  const ids = async (target, limit = 100, by = viewer) => (await by.pages(target, limit)).map((e) => e.effectId)
  const of = (list) => list.map((e) => made.indexOf(e))
  same(of(await ids(`/v1/effects?effectType=${type}`)), [0, 1, 2, 3, 4]) // newest first
  same(of(await ids(`/v1/effects?effectType=${type}`, 2)), [0, 1, 2, 3, 4])
  same(of(await ids(`/v1/effects?effectType=${type}&runId=${encodeURIComponent(one)}`, 1)), [1, 3])
  same(of(await ids(`${at(one)}?effectType=${type}`, 1)), [1, 3])
  same((await ids(at(one))).length, 3)
  same((await ids(`/v1/effects?effectType=${type}&status=${ALL}`)).length, 5)
  same((await ids(`/v1/effects?effectType=${type}&status=${ALL.replaceAll(',', '&status=')}`)).length, 5)
  same((await ids(`/v1/effects?effectType=${type}&status=COMPLETED`)).length, 0)
  same((await ids(`/v1/effects?effectType=${type}&tenantId=${acme.name}`, 3, root)).length, 5)
  same((await ids(`/v1/effects?effectType=${type}`, 3, root)).length, 5)
  same((await ids(`/v1/effects?runId=nobody`)).length, 0)
})
test('effects: a page of large ones is short', async () => {
  const runId = await appended()
  for (let n = 0; n < 40; n++) await ask(runId, { payload: { n, text: 'x'.repeat(240000) } })
  const page = await viewer.must(200, 'GET', `${at(runId)}?limit=1000`)
  check(page.items.length < 40 && page.next !== null, `${page.items.length} items`)
  same((await viewer.pages(at(runId), 1000)).map((e) => e.payload.n), Array.from({ length: 40 }, (_, n) => 39 - n))
})
test('effects: lists that cannot be', async () => {
  const runId = await appended()
  for (const target of ['/v1/effects', at(runId)]) {
    const no = (query, code, where) => viewer.refused(400, code, 'GET', `${target}?${query}`, undefined, [], where)
    await no('status=DEAD', 'PARAMETER_INVALID', '?status')
    await no('status=PENDING,', 'PARAMETER_INVALID', '?status')
    await no('status=', 'FIELD_EMPTY', '?status')
    await no('limit=0', 'NUMBER_OUT_OF_RANGE', '?limit')
    await no('limit=1001', 'NUMBER_OUT_OF_RANGE', '?limit')
    await no('cursor=x', 'CURSOR_INVALID', '?cursor')
    await no('nope=1', 'PARAMETER_UNKNOWN', '?nope')
    await no('limit=1&limit=1', 'PARAMETER_REPEATED', '?limit')
    await no(`effectType=${'x'.repeat(101)}`, 'FIELD_TOO_LONG', '?effectType')
  }
  await viewer.refused(400, 'PARAMETER_UNKNOWN', 'GET', `${at(runId)}?runId=${encodeURIComponent(runId)}`, undefined, [], '?runId')
  await viewer.refused(404, 'RUN_NOT_FOUND', 'GET', at('nobody'))
})
test('effects: of another tenant are not there', async () => {
  const runId = await appended()
  const { effectId } = await ask(runId)
  await other.viewer.refused(404, 'EFFECT_NOT_FOUND', 'GET', `/v1/effects/${effectId}`)
  await other.operator.refused(404, 'EFFECT_NOT_FOUND', 'POST', `/v1/effects/${effectId}/requeue`)
  await other.viewer.refused(404, 'RUN_NOT_FOUND', 'GET', at(runId))
  await other.operator.refused(404, 'RUN_NOT_FOUND', 'POST', at(runId), { effectType: 'X', payload: {} })
  await other.viewer.refused(404, 'TENANT_NOT_FOUND', 'GET', `/v1/effects?tenantId=${acme.name}`)
  await other.operator.refused(404, 'TENANT_NOT_FOUND', 'POST', '/v1/effects/requeue', { tenantId: acme.name })
  same((await other.viewer.must(200, 'GET', `/v1/effects?runId=${encodeURIComponent(runId)}`)).items, [])
  await root.must(200, 'GET', `/v1/effects/${effectId}`)
})
test('effects: who may do what', async () => {
  const runId = await appended()
  const body = { effectType: 'X', payload: {} }
  const { effectId } = await ask(runId)
  for (const by of [viewer, worker]) await by.refused(403, 'FORBIDDEN', 'POST', at(runId), body)
  for (const by of [producer, worker]) {
    for (const target of ['/v1/effects', at(runId), `/v1/effects/${effectId}`]) await by.refused(403, 'FORBIDDEN', 'GET', target)
  }
  for (const by of [viewer, producer, worker]) {
    await by.refused(403, 'FORBIDDEN', 'POST', `/v1/effects/${effectId}/requeue`)
    const answer = await by.refused(403, 'FORBIDDEN', 'POST', '/v1/effects/requeue')
    const [record] = await until('it is written down', async () => { const found = await audited(answer); return found.length > 0 && found })
    same([record.action, record.outcome, record.code], ['effect.requeue', 'refused', 'FORBIDDEN'])
  }
})
test('effects: a request leaves a record', async () => {
  const runId = await appended()
  const answer = await operator.post(at(runId), { effectType: 'X', payload: {} })
  const [record] = await audited(answer)
  same([record.action, record.target, record.outcome, record.runId, record.tenantId, record.projectId], ['effect.request', answer.json.effectId, 'done', runId, acme.name, 'warehouse'])
})
test('effects: putting back what is not dead', async () => {
  const runId = await appended()
  const type = id('Type')
  const { effectId } = await ask(runId, { effectType: type, baseDelayMs: 86400000 })
  const target = `/v1/effects/${effectId}/requeue`
  await operator.refused(409, 'EFFECT_NOT_DEAD', 'POST', target)
  await operator.refused(409, 'EFFECT_NOT_DEAD', 'POST', target, { reason: 'why not' })
  await operator.refused(400, 'FIELD_UNKNOWN', 'POST', target, { why: 'x' }, [], '/why')
  await operator.refused(400, 'FIELD_TOO_LONG', 'POST', target, { reason: 'x'.repeat(1001) }, [], '/reason')
  for (const unknown of ['x', '00000000-0000-4000-8000-000000000000']) await operator.refused(404, 'EFFECT_NOT_FOUND', 'POST', `/v1/effects/${unknown}/requeue`)
  for (const unknown of ['x', 'requeue', '00000000-0000-4000-8000-000000000000']) await viewer.refused(404, 'EFFECT_NOT_FOUND', 'GET', `/v1/effects/${unknown}`)
  const headers = keyed()
  for (const replayed of [undefined, 'true']) {
    const answer = await operator.post('/v1/effects/requeue', { effectType: type }, headers)
    same([answer.status, answer.json, answer.headers['idempotent-replayed']], [200, { requeued: 0, more: false }, replayed])
  }
  same(await operator.must(200, 'POST', '/v1/effects/requeue', { effectType: type, runId, limit: 1000, reason: 'all of them' }), { requeued: 0, more: false })
  for (const limit of [0, 1001]) await operator.refused(400, 'NUMBER_OUT_OF_RANGE', 'POST', '/v1/effects/requeue', { limit }, [], '/limit')
  await operator.refused(400, 'FIELD_UNKNOWN', 'POST', '/v1/effects/requeue', { status: 'FAILED' }, [], '/status')
})
