BEGIN TRANSACTION;
CREATE TABLE torch_oracle_meta (
	"key" VARCHAR(64) NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE TABLE runs (
	run INTEGER NOT NULL, 
	run_id TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	started_at VARCHAR(40) NOT NULL, 
	ended_at VARCHAR(40), 
	environment TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	PRIMARY KEY (run), 
	UNIQUE (run_id)
);
CREATE TABLE programs (
	program_hash VARCHAR(64) NOT NULL, 
	program TEXT NOT NULL, 
	PRIMARY KEY (program_hash)
);
CREATE TABLE cases (
	run INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	case_id TEXT NOT NULL, 
	suite TEXT NOT NULL, 
	group_name TEXT NOT NULL, 
	name TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	direction TEXT NOT NULL, 
	device TEXT NOT NULL, 
	tags TEXT NOT NULL, 
	program_hash VARCHAR(64) NOT NULL, 
	PRIMARY KEY (run, ordinal), 
	UNIQUE (run, case_id), 
	FOREIGN KEY(run) REFERENCES runs (run), 
	FOREIGN KEY(program_hash) REFERENCES programs (program_hash)
);
CREATE TABLE records (
	run INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	status TEXT NOT NULL, 
	symptom TEXT, 
	stage TEXT, 
	call BIGINT, 
	worst_where TEXT, 
	worst_index TEXT, 
	worst_eager TEXT, 
	worst_subject TEXT, 
	worst_truth TEXT, 
	worst_eager_error DOUBLE, 
	worst_subject_error DOUBLE, 
	worst_allowed_error DOUBLE, 
	worst_ulp DOUBLE, 
	compared_tensors BIGINT, 
	compared_elements BIGINT, 
	compared_others BIGINT, 
	compared_unstable BIGINT, 
	also TEXT, 
	explained TEXT, 
	max_ulp DOUBLE, 
	wall_s DOUBLE, 
	bare_s DOUBLE, 
	eager_s DOUBLE, 
	subject_s DOUBLE, 
	speedup DOUBLE, 
	speedup_low DOUBLE, 
	speedup_high DOUBLE, 
	repeats BIGINT, 
	compile_cold_s DOUBLE, 
	compile_warm_s DOUBLE, 
	peak_memory BIGINT, 
	eager_peak_memory BIGINT, 
	graphs BIGINT, 
	graph_breaks BIGINT, 
	recompiles BIGINT, 
	seed TEXT, 
	repro TEXT, 
	started_at TEXT, 
	traceback TEXT, 
	schema_version BIGINT, 
	extra TEXT NOT NULL, 
	nan_columns TEXT NOT NULL, 
	PRIMARY KEY (run, ordinal), 
	FOREIGN KEY(run, ordinal) REFERENCES cases (run, ordinal)
);
INSERT INTO "torch_oracle_meta" VALUES('schema_version','1');
INSERT INTO "runs" VALUES(1,'run-1','complete','2026-11-27T19:38:20+00:00','2026-11-27T19:38:20+00:00','{"versions": {"torch": "2.13.0+cpu", "triton": "3.7.1"}, "machine": "x86_64", "cpu_model": "AMD EPYC", "worker": {"torch": "2.13.0+cpu", "torch_git": "cf30153c"}}','{"suite": ["opinfo"], "subject": ["inductor"], "shard": {"index": 1, "count": 1}}');
INSERT INTO "programs" VALUES('f0f8ff11ed8a664a422b86bc80254dcc1f954fa8a8bc10b504ce44b214a44a04','{"format":1,"name":"pass/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('1ee6df12e46b9f222b286c2f6fd60d592a936cf22457102a46c3056d6573dcb9','{"format":1,"name":"pass_due_to_skip/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('5d11a0a342bbc477f9b1eca8befbc2745f55097d590c51ca08bca468017c69ba','{"format":1,"name":"fail_accuracy/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('fb0daab68bfc9adf701c68afe91a5c282e534aade94d2b6c66768c22a496b36e','{"format":1,"name":"fail_grad/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('57f1149f49260ec4b122bca82269fe9156b3c3b41fbde7f05d8a88cc44994f09','{"format":1,"name":"fail_mutation/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('b46cfa42886d07b2f176896c6199e502743009d3bfdc477ab4e9bed6f1755214','{"format":1,"name":"fail_alias/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('60a4b6309ad676d224fac7bf7252d64eb37a9cc90b9045a93419cef06519db26','{"format":1,"name":"fail_stride/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('f5fdb4e81354e80138e48429f9c6e826d02271d9ab7356ffaf94e710c328238d','{"format":1,"name":"fail_metadata/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('a32c6d9f541a06fe2e2447453e0b678d1d1f66239907988cbf6a43f979bda810','{"format":1,"name":"fail_state/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('8a36218803ca49e762db3c67305fc71193a0b32073280ab30787e4a10a5528f1','{"format":1,"name":"fail_rng/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('3126593c72fccf4a2c5b2bbfb2f3d02c108643ae9deaadf6860911017d9c5425','{"format":1,"name":"fail_guard/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('3cf2874a72b0c805366248565fc9b8fb369951aac0c5aaab88938281da691ffc','{"format":1,"name":"fail_exception/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('e5205cc458ee35b80ca93facdf59b095e75a2335e40d04bea16c1099d8076f2f','{"format":1,"name":"fail_export/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('5aa55324ddd3f5459b35462e1bc127bb5114d5088f7ccd8cff28ddbfb86bb5c2','{"format":1,"name":"fail_to_run/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('dbc832c6ea2c9ef3fda43f2bd9a0af9b9caa9aed96c752ed3bea0cce3f7d9da4','{"format":1,"name":"eager_fail_to_run/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('1dcf7fa6052fc7fe3480ec61c408f7dec6b71148c6a50de67cb022676864a1e2','{"format":1,"name":"eager_two_runs_differ/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('fa8a4c7911a0ff5e89a1c834f86b839f90ced58e9b3049554eca8a63641af558','{"format":1,"name":"model_fail_to_load/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('27cd3403cf2e40a6790da84bbf2ad9ab763c73bae8e963e0a6f4e491fd615280','{"format":1,"name":"OOM/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('d08cbe96dfe72402a230d64af7157a2ba5cba31d47df46ba722731cc89fe2350','{"format":1,"name":"timeout/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('25b1201212cd90e992f5f5a1590cc949634425f863d2639e69330a16f8aee635','{"format":1,"name":"crash/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('2979671e07f0355de2fd2443619e117697f878d85abb3f6f49cd85c983370352','{"format":1,"name":"missing/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('aecf93bfdce1f8528cc48e41177caf53475f7bd78dfed5cd6f28e2ef9c78405c','{"format":1,"name":"not_run/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('f75f04ac525e466232647b64afcb950b91122027a073b94afb4a963cadc5083b','{"format":1,"name":"known/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "programs" VALUES('3f23a129d90df3b6a4b45ecffd532f033b8019bb030db8b860d7159b0012e227','{"format":1,"name":"xpass/float32/forward/0","source":"def program(x):\n    return x + 1\n","calls":[{}]}');
INSERT INTO "cases" VALUES(1,0,'opinfo/pass/float32/forward/0@inductor','opinfo','pass','pass/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','f0f8ff11ed8a664a422b86bc80254dcc1f954fa8a8bc10b504ce44b214a44a04');
INSERT INTO "cases" VALUES(1,1,'opinfo/pass_due_to_skip/float32/forward/0@inductor','opinfo','pass_due_to_skip','pass_due_to_skip/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','1ee6df12e46b9f222b286c2f6fd60d592a936cf22457102a46c3056d6573dcb9');
INSERT INTO "cases" VALUES(1,2,'opinfo/fail_accuracy/float32/forward/0@inductor','opinfo','fail_accuracy','fail_accuracy/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','5d11a0a342bbc477f9b1eca8befbc2745f55097d590c51ca08bca468017c69ba');
INSERT INTO "cases" VALUES(1,3,'opinfo/fail_grad/float32/forward/0@inductor','opinfo','fail_grad','fail_grad/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','fb0daab68bfc9adf701c68afe91a5c282e534aade94d2b6c66768c22a496b36e');
INSERT INTO "cases" VALUES(1,4,'opinfo/fail_mutation/float32/forward/0@inductor','opinfo','fail_mutation','fail_mutation/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','57f1149f49260ec4b122bca82269fe9156b3c3b41fbde7f05d8a88cc44994f09');
INSERT INTO "cases" VALUES(1,5,'opinfo/fail_alias/float32/forward/0@inductor','opinfo','fail_alias','fail_alias/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','b46cfa42886d07b2f176896c6199e502743009d3bfdc477ab4e9bed6f1755214');
INSERT INTO "cases" VALUES(1,6,'opinfo/fail_stride/float32/forward/0@inductor','opinfo','fail_stride','fail_stride/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','60a4b6309ad676d224fac7bf7252d64eb37a9cc90b9045a93419cef06519db26');
INSERT INTO "cases" VALUES(1,7,'opinfo/fail_metadata/float32/forward/0@inductor','opinfo','fail_metadata','fail_metadata/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','f5fdb4e81354e80138e48429f9c6e826d02271d9ab7356ffaf94e710c328238d');
INSERT INTO "cases" VALUES(1,8,'opinfo/fail_state/float32/forward/0@inductor','opinfo','fail_state','fail_state/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','a32c6d9f541a06fe2e2447453e0b678d1d1f66239907988cbf6a43f979bda810');
INSERT INTO "cases" VALUES(1,9,'opinfo/fail_rng/float32/forward/0@inductor','opinfo','fail_rng','fail_rng/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','8a36218803ca49e762db3c67305fc71193a0b32073280ab30787e4a10a5528f1');
INSERT INTO "cases" VALUES(1,10,'opinfo/fail_guard/float32/forward/0@inductor','opinfo','fail_guard','fail_guard/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','3126593c72fccf4a2c5b2bbfb2f3d02c108643ae9deaadf6860911017d9c5425');
INSERT INTO "cases" VALUES(1,11,'opinfo/fail_exception/float32/forward/0@inductor','opinfo','fail_exception','fail_exception/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','3cf2874a72b0c805366248565fc9b8fb369951aac0c5aaab88938281da691ffc');
INSERT INTO "cases" VALUES(1,12,'opinfo/fail_export/float32/forward/0@inductor','opinfo','fail_export','fail_export/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','e5205cc458ee35b80ca93facdf59b095e75a2335e40d04bea16c1099d8076f2f');
INSERT INTO "cases" VALUES(1,13,'opinfo/fail_to_run/float32/forward/0@inductor','opinfo','fail_to_run','fail_to_run/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','5aa55324ddd3f5459b35462e1bc127bb5114d5088f7ccd8cff28ddbfb86bb5c2');
INSERT INTO "cases" VALUES(1,14,'opinfo/eager_fail_to_run/float32/forward/0@inductor','opinfo','eager_fail_to_run','eager_fail_to_run/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','dbc832c6ea2c9ef3fda43f2bd9a0af9b9caa9aed96c752ed3bea0cce3f7d9da4');
INSERT INTO "cases" VALUES(1,15,'opinfo/eager_two_runs_differ/float32/forward/0@inductor','opinfo','eager_two_runs_differ','eager_two_runs_differ/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','1dcf7fa6052fc7fe3480ec61c408f7dec6b71148c6a50de67cb022676864a1e2');
INSERT INTO "cases" VALUES(1,16,'opinfo/model_fail_to_load/float32/forward/0@inductor','opinfo','model_fail_to_load','model_fail_to_load/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','fa8a4c7911a0ff5e89a1c834f86b839f90ced58e9b3049554eca8a63641af558');
INSERT INTO "cases" VALUES(1,17,'opinfo/OOM/float32/forward/0@inductor','opinfo','OOM','OOM/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','27cd3403cf2e40a6790da84bbf2ad9ab763c73bae8e963e0a6f4e491fd615280');
INSERT INTO "cases" VALUES(1,18,'opinfo/timeout/float32/forward/0@inductor','opinfo','timeout','timeout/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','d08cbe96dfe72402a230d64af7157a2ba5cba31d47df46ba722731cc89fe2350');
INSERT INTO "cases" VALUES(1,19,'opinfo/crash/float32/forward/0@inductor','opinfo','crash','crash/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','25b1201212cd90e992f5f5a1590cc949634425f863d2639e69330a16f8aee635');
INSERT INTO "cases" VALUES(1,20,'opinfo/missing/float32/forward/0@inductor','opinfo','missing','missing/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','2979671e07f0355de2fd2443619e117697f878d85abb3f6f49cd85c983370352');
INSERT INTO "cases" VALUES(1,21,'opinfo/not_run/float32/forward/0@inductor','opinfo','not_run','not_run/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','aecf93bfdce1f8528cc48e41177caf53475f7bd78dfed5cd6f28e2ef9c78405c');
INSERT INTO "cases" VALUES(1,22,'opinfo/known/float32/forward/0@inductor','opinfo','known','known/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','f75f04ac525e466232647b64afcb950b91122027a073b94afb4a963cadc5083b');
INSERT INTO "cases" VALUES(1,23,'opinfo/xpass/float32/forward/0@inductor','opinfo','xpass','xpass/float32/forward/0','inductor','float32','forward','cpu','["elementwise"]','3f23a129d90df3b6a4b45ecffd532f033b8019bb030db8b860d7159b0012e227');
INSERT INTO "records" VALUES(1,0,'pass','',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''pass/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,1,'pass_due_to_skip','call 0: a made-up pass_due_to_skip',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''pass_due_to_skip/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'{"measurements": {"kernels": 3}}','[]');
INSERT INTO "records" VALUES(1,2,'fail_accuracy','call 0: a made-up fail_accuracy',NULL,0,'call 0: output[1]','[0, 3]','1.5','4.5','1.4999999',1.0e-07,3.0,1.0e-05,25000000.0,2,24,1,0,'[]','[]',25000000.0,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_accuracy/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,3,'fail_grad','call 0: a made-up fail_grad',NULL,0,'call 0: output[1]','[0, 3]','1.5','4.5','1.4999999',1.0e-07,3.0,1.0e-05,25000000.0,2,24,1,0,'[]','[]',25000000.0,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_grad/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,4,'fail_mutation','call 0: a made-up fail_mutation',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_mutation/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,5,'fail_alias','call 0: a made-up fail_alias',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_alias/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,6,'fail_stride','call 0: a made-up fail_stride',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_stride/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,7,'fail_metadata','call 0: a made-up fail_metadata',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_metadata/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,8,'fail_state','call 0: a made-up fail_state',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_state/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,9,'fail_rng','call 0: a made-up fail_rng',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_rng/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,10,'fail_guard','call 0: a made-up fail_guard',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_guard/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,11,'fail_exception','call 0: a made-up fail_exception',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_exception/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,12,'fail_export','call 0: a made-up fail_export',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_export/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,13,'fail_to_run','call 0: a made-up fail_to_run',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''fail_to_run/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','Traceback (most recent call last):
RuntimeError: boom',1,'','[]');
INSERT INTO "records" VALUES(1,14,'eager_fail_to_run','call 0: a made-up eager_fail_to_run',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''eager_fail_to_run/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,15,'eager_two_runs_differ','call 0: a made-up eager_two_runs_differ',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''eager_two_runs_differ/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,16,'model_fail_to_load','call 0: a made-up model_fail_to_load',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''model_fail_to_load/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,17,'OOM','call 0: a made-up OOM',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''OOM/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,18,'timeout','call 0: a made-up timeout',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''timeout/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,19,'crash','call 0: a made-up crash',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''crash/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,20,'missing','call 0: a made-up missing',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''missing/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,21,'not_run','call 0: a made-up not_run',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''not_run/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'','[]');
INSERT INTO "records" VALUES(1,22,'known','accepted: see the link',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''known/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'{"verdict": {"issue": "made-up-issue", "observed": "fail_accuracy"}}','[]');
INSERT INTO "records" VALUES(1,23,'xpass','call 0: a made-up xpass',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,2,24,1,0,'[]','[]',0.5,0.5,0.42,NULL,NULL,NULL,NULL,NULL,NULL,1.25,NULL,NULL,NULL,1,0,0,'1234','torch-oracle sweep --suite opinfo --match ''xpass/float32/forward/0'' --subject inductor','2026-01-02T03:04:05+00:00','',1,'{"verdict": {"issue": "made-up-issue"}}','[]');
CREATE INDEX records_by_status ON records (run, status);
CREATE VIEW results AS SELECT runs.run_id, cases.case_id, cases.suite, cases.group_name, cases.name, cases.subject, cases.dtype, cases.direction, cases.device, cases.tags, COALESCE(records.status, CASE runs.state WHEN 'complete' THEN 'missing' ELSE 'not_run' END) AS status, records.symptom, records.stage, records.call, records.worst_where, records.worst_index, records.worst_eager, records.worst_subject, records.worst_truth, records.worst_eager_error, records.worst_subject_error, records.worst_allowed_error, records.worst_ulp, records.compared_tensors, records.compared_elements, records.compared_others, records.compared_unstable, records.also, records.explained, records.max_ulp, records.wall_s, records.bare_s, records.eager_s, records.subject_s, records.speedup, records.speedup_low, records.speedup_high, records.repeats, records.compile_cold_s, records.compile_warm_s, records.peak_memory, records.eager_peak_memory, records.graphs, records.graph_breaks, records.recompiles, records.seed, records.repro, records.started_at, records.traceback, records.schema_version FROM cases JOIN runs ON runs.run = cases.run LEFT JOIN records ON records.run = cases.run AND records.ordinal = cases.ordinal;
COMMIT;
